"""The client library: clients and teams of them, the runner of many episodes, the throttler, and evaluation."""

from __future__ import annotations

import importlib
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from swarm.client.client import AsyncSwarmClient, SwarmClient
    from swarm.client.connections import AsyncConnectionStack, ConnectionStack
    from swarm.client.episode import Credentials, OpenEpisode
    from swarm.client.evaluation import Evaluation, EvaluationFailure, evaluate, follow_evaluations
    from swarm.client.runner import EpisodeFailure, EpisodeRuns, run_episodes_until_all_complete
    from swarm.client.teams import AsyncSwarmTeam, OpenEpisodes, SwarmTeam
    from swarm.client.throttler import Throttler

__all__ = [
    "AsyncConnectionStack",
    "AsyncSwarmClient",
    "AsyncSwarmTeam",
    "ConnectionStack",
    "Credentials",
    "EpisodeFailure",
    "EpisodeRuns",
    "Evaluation",
    "EvaluationFailure",
    "OpenEpisode",
    "OpenEpisodes",
    "SwarmClient",
    "SwarmTeam",
    "Throttler",
    "evaluate",
    "follow_evaluations",
    "run_episodes_until_all_complete",
]

_MODULES = ("connections", "client", "episode", "runner", "teams", "throttler", "evaluation")
"""The modules that have the public names. The process of a foreign program, which only connects, loads the first."""


def __getattr__(name: str) -> object:
    for module in _MODULES if name in __all__ else ():
        with suppress(AttributeError):
            return getattr(importlib.import_module(f"swarm.client.{module}"), name)
    raise AttributeError(f"module 'swarm.client' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
