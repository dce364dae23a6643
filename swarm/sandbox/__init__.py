"""The sandbox of foreign programs: what they see, what they may use, and one way out to their server."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from swarm.sandbox.sandbox import Sandbox, SandboxedCommand, choose_sandbox, plain_command

__all__ = [
    "Sandbox",
    "SandboxedCommand",
    "choose_sandbox",
    "plain_command",
]

_MODULE_BY_NAME = {
    **dict.fromkeys(("Sandbox", "SandboxedCommand", "choose_sandbox", "plain_command"), "swarm.sandbox.sandbox"),
}


def __getattr__(name: str) -> object:
    if name not in _MODULE_BY_NAME:
        raise AttributeError(f"module 'swarm.sandbox' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE_BY_NAME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
