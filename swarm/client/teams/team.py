"""The common base of SwarmTeam and AsyncSwarmTeam: the plan of each call, and the open episodes of a `with` block.

Place in the flow: sync_team.py and async_team.py derive from it and do the I/O for the plans.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from swarm.client.async_client import AsyncSwarmClient
from swarm.client.client import SwarmClient
from swarm.client.episode import Credentials, EpisodeSampling
from swarm.client.plans import team_calls
from swarm.client.plans.team_calls import Begun, TeamPlan
from swarm.errors import BadRequest, ServerUnreachable, Unavailable
from swarm.schemas import EndEpisodeResponse
from swarm.types import EpisodeType, Task, WorkflowOutput

T = TypeVar("T")
Client = TypeVar("Client", SwarmClient, AsyncSwarmClient)


@dataclass(slots=True)
class OpenEpisodes:
    """The episodes inside `with team.open_episodes(task)`; set an entry of `outputs` for each client to end them.

    `receipts` are the servers' answers by the name of the client, after the block.
    """

    task: Task
    credentials: Mapping[str, Credentials]
    outputs: dict[str, WorkflowOutput] = field(default_factory=dict[str, WorkflowOutput])
    receipts: Mapping[str, EndEpisodeResponse] = field(default_factory=dict[str, EndEpisodeResponse])


class Team(Generic[Client]):
    """A team of clients, which are given by name.

    The server of the first client is the coordinator. The other servers must be able to reach it under the address of
    its client. All programs that use the same servers must name them in the same order. Otherwise they can wait for
    each other for ever, because each waits for one server with an episode open on those before it.
    """

    def __init__(self, clients: Mapping[str, Client]) -> None:
        if not clients:
            raise BadRequest("a team needs at least one client", param="clients")
        self.clients = dict(clients)
        # By the coordinator's episode, so that a repeated end continues the same transaction.
        self._transactions: dict[str, str] = {}

    def _begin(
        self,
        task: Task,
        episode_type: EpisodeType | str,
        discard_episode_timeout: float,
        lease_s: float | None,
        wait_timeout: float,
        sampling: EpisodeSampling,
    ) -> TeamPlan[dict[str, tuple[str, Credentials]]]:
        def begin(client: SwarmClient | AsyncSwarmClient) -> Any:
            return client.begin_episode(
                episode_type,
                discard_episode_timeout,
                task_id=task.task_id,
                data_source=task.data_source,
                lease_s=lease_s,
                wait_timeout=wait_timeout,
                **sampling,
            )

        return team_calls.begin_all(list(self.clients), begin)

    def _end(
        self, task: Task, episodes: Begun, outputs: Mapping[str, WorkflowOutput], wait_timeout: float
    ) -> TeamPlan[dict[str, EndEpisodeResponse]]:
        ids = ids_of(episodes)
        deciding = ids.get(next(iter(self.clients)), "")
        transaction_id = self._transactions.setdefault(deciding, team_calls.new_transaction_id())
        urls = {name: client.url for name, client in self.clients.items()}
        is_known = True
        try:
            return (yield from team_calls.end_all(urls, task, ids, outputs, transaction_id, wait_timeout))
        except (ServerUnreachable, Unavailable):
            is_known = False
            raise
        finally:
            if is_known:
                self._transactions.pop(deciding, None)

    def _abort(self, episodes: Begun, reason: str) -> TeamPlan[None]:
        ids = ids_of(episodes)
        self._transactions.pop(ids.get(next(iter(self.clients)), ""), None)
        return team_calls.abort_all({name: ids[name] for name in self.clients if name in ids}, reason)


def ids_of(episodes: Begun) -> dict[str, str]:
    return {name: episode_id for name, (episode_id, _) in episodes.items()}


def opened(task: Task, begun: Begun) -> OpenEpisodes:
    return OpenEpisodes(task, {name: credentials for name, (_, credentials) in begun.items()})
