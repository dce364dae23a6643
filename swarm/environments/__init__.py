"""Environments: tasks in three disjoint splits, and a grader for attempts at them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swarm.processes.imports import lazy_names

if TYPE_CHECKING:
    from swarm.environments.base import DrivenEnvironment as DrivenEnvironment
    from swarm.environments.base import Environment as Environment
    from swarm.environments.base import EnvironmentTask as EnvironmentTask
    from swarm.environments.base import Grade as Grade
    from swarm.environments.base import Session as Session
    from swarm.environments.base import Transcript as Transcript
    from swarm.environments.environment_check import transcript_of as transcript_of
    from swarm.environments.registry import LIBRARIES as LIBRARIES
    from swarm.environments.registry import agent_of as agent_of
    from swarm.environments.registry import has_own_worker as has_own_worker
    from swarm.environments.registry import is_bundled as is_bundled
    from swarm.environments.registry import load_environment as load_environment
    from swarm.environments.registry import options_of as options_of
    from swarm.environments.registry import with_options as with_options

# The sandbox of a program shows the contract alone.
__getattr__, __dir__ = lazy_names(__name__)
