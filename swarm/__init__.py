"""The public names of the service for reinforcement learning of LLM agents. Each name loads on first use."""

from __future__ import annotations

import importlib
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from swarm.client import (
        AsyncConnectionStack,
        AsyncSwarmClient,
        AsyncSwarmTeam,
        ConnectionStack,
        Credentials,
        EpisodeFailure,
        EpisodeRuns,
        Evaluation,
        SwarmClient,
        SwarmTeam,
        Throttler,
        evaluate,
        follow_evaluations,
        run_episodes_until_all_complete,
    )
    from swarm.errors import (
        EngineFailure,
        EpisodeEnded,
        Forbidden,
        ServerUnreachable,
        SwarmError,
        TrainingComplete,
        Unavailable,
    )
    from swarm.job import TrainJob
    from swarm.types import EpisodeType, Task, WorkflowOutput

__version__ = "0.1.0"

__all__ = [
    "AsyncConnectionStack",
    "AsyncSwarmClient",
    "AsyncSwarmTeam",
    "ConnectionStack",
    "Credentials",
    "EngineFailure",
    "EpisodeEnded",
    "EpisodeFailure",
    "EpisodeRuns",
    "EpisodeType",
    "Evaluation",
    "Forbidden",
    "ServerUnreachable",
    "SwarmClient",
    "SwarmError",
    "SwarmTeam",
    "Task",
    "Throttler",
    "TrainJob",
    "TrainingComplete",
    "Unavailable",
    "WorkflowOutput",
    "__version__",
    "evaluate",
    "follow_evaluations",
    "run_episodes_until_all_complete",
]

_MODULES = ("swarm.errors", "swarm.types", "swarm.job", "swarm.client")
"""The modules that have the public names, the fastest to load first."""


def __getattr__(name: str) -> object:
    for module in _MODULES if name in __all__ else ():
        with suppress(AttributeError):
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module 'swarm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
