"""The client side: a server as an object, a runner for many episodes, a throttler, evaluation."""

from swarm.client.async_client import AsyncSwarmClient
from swarm.client.async_team import AsyncSwarmTeam
from swarm.client.client import SwarmClient
from swarm.client.connections import AsyncConnectionStack, ConnectionStack
from swarm.client.episode import Credentials, OpenEpisode
from swarm.client.evaluation import Evaluation, EvaluationFailure, evaluate, follow_evaluations
from swarm.client.runner import EpisodeFailure, EpisodeRuns, run_episodes_until_all_complete
from swarm.client.sync_team import SwarmTeam
from swarm.client.team import OpenEpisodes
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
