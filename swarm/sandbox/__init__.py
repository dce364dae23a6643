"""The sandbox of foreign programs: what they see, what they may use, and one way out to their server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swarm.processes.imports import lazy_names

if TYPE_CHECKING:
    from swarm.sandbox.sandbox import Sandbox as Sandbox
    from swarm.sandbox.sandbox import SandboxedCommand as SandboxedCommand
    from swarm.sandbox.sandbox import choose_sandbox as choose_sandbox
    from swarm.sandbox.sandbox import plain_command as plain_command

# The inside of a sandbox does not show the modules that make it.
__getattr__, __dir__ = lazy_names(__name__)
