"""The public names of the service for reinforcement learning of LLM agents.

Place in the flow: users import from here. Each name loads on first use. So `import swarm` is fast, and a client on a
laptop never loads the server.
"""

from __future__ import annotations

import importlib
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

_MODULE_BY_NAME = {
    **dict.fromkeys(
        (
            "AsyncConnectionStack", "AsyncSwarmClient", "AsyncSwarmTeam", "ConnectionStack", "Credentials",
            "EpisodeFailure", "EpisodeRuns", "Evaluation", "SwarmClient", "SwarmTeam", "Throttler", "evaluate",
            "follow_evaluations", "run_episodes_until_all_complete",
        ),
        "swarm.client",
    ),
    "TrainJob": "swarm.job",
    **dict.fromkeys(
        (
            "EngineFailure", "EpisodeEnded", "Forbidden", "ServerUnreachable", "SwarmError", "TrainingComplete",
            "Unavailable",
        ),
        "swarm.errors",
    ),
    **dict.fromkeys(("EpisodeType", "Task", "WorkflowOutput"), "swarm.types"),
}  # fmt: skip


def __getattr__(name: str) -> object:
    if name not in _MODULE_BY_NAME:
        raise AttributeError(f"module 'swarm' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE_BY_NAME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
