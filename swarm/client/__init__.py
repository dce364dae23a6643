"""The client library: clients and teams of them, the runner of many episodes, the throttler, and evaluation."""

from __future__ import annotations

import importlib
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

# On first use, so that the process of a foreign program loads only the connections and starts sooner.
_MODULE_BY_NAME = {
    **dict.fromkeys(("AsyncSwarmClient", "SwarmClient"), "swarm.client.client"),
    **dict.fromkeys(("AsyncConnectionStack", "ConnectionStack"), "swarm.client.connections"),
    **dict.fromkeys(("Credentials", "OpenEpisode"), "swarm.client.episode"),
    **dict.fromkeys(("Evaluation", "EvaluationFailure", "evaluate", "follow_evaluations"), "swarm.client.evaluation"),
    **dict.fromkeys(("EpisodeFailure", "EpisodeRuns", "run_episodes_until_all_complete"), "swarm.client.runner"),
    **dict.fromkeys(("AsyncSwarmTeam", "OpenEpisodes", "SwarmTeam"), "swarm.client.teams"),
    "Throttler": "swarm.client.throttler",
}


def __getattr__(name: str) -> object:
    if name not in _MODULE_BY_NAME:
        raise AttributeError(f"module 'swarm.client' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE_BY_NAME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
