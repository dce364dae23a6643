"""The client side: a server as an object, a runner for many episodes, evaluation."""

from swarm.client.client import AsyncSwarmClient, OpenEpisode, SwarmClient
from swarm.client.connections import AsyncConnectionStack, ConnectionStack
from swarm.client.credentials import Credentials
from swarm.client.evaluation import Evaluation, EvaluationFailure, evaluate
from swarm.client.rollout import EpisodeFailure, EpisodeRuns, run_episodes_until_all_complete

__all__ = [
    "AsyncConnectionStack",
    "AsyncSwarmClient",
    "ConnectionStack",
    "Credentials",
    "EpisodeFailure",
    "EpisodeRuns",
    "Evaluation",
    "EvaluationFailure",
    "OpenEpisode",
    "SwarmClient",
    "evaluate",
    "run_episodes_until_all_complete",
]
