"""The client side: a server as an object, a runner for many episodes, a throttler, evaluation."""

from swarm.client.async_client import AsyncSwarmClient as AsyncSwarmClient
from swarm.client.async_team import AsyncSwarmTeam as AsyncSwarmTeam
from swarm.client.client import SwarmClient as SwarmClient
from swarm.client.connections import AsyncConnectionStack as AsyncConnectionStack
from swarm.client.connections import ConnectionStack as ConnectionStack
from swarm.client.episode import Credentials as Credentials
from swarm.client.episode import OpenEpisode as OpenEpisode
from swarm.client.evaluation import Evaluation as Evaluation
from swarm.client.evaluation import EvaluationFailure as EvaluationFailure
from swarm.client.evaluation import evaluate as evaluate
from swarm.client.evaluation import follow_evaluations as follow_evaluations
from swarm.client.runner import EpisodeFailure as EpisodeFailure
from swarm.client.runner import EpisodeRuns as EpisodeRuns
from swarm.client.runner import run_episodes_until_all_complete as run_episodes_until_all_complete
from swarm.client.sync_team import SwarmTeam as SwarmTeam
from swarm.client.team import OpenEpisodes as OpenEpisodes
from swarm.client.throttler import Throttler as Throttler
