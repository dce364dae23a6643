"""SwarmTeam: one episode that uses several servers, each with a model of its own, and counts on all of them or on none.

Place in the flow: what a program with several models in one team of agents holds. The order of calls is that of
team_calls.py; what keeps the promise when this program dies is the servers' (docs/transactions.md).
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from swarm.client.async_client import AsyncSwarmClient
from swarm.client.client import SwarmClient
from swarm.client.credentials import Credentials
from swarm.client.episode import DEFAULT_END_WAIT_S, DEFAULT_WAIT_S, abort_reason
from swarm.client.leases import DEFAULT_LEASE_S
from swarm.client.plans import team_calls
from swarm.client.plans.team_calls import Begun, TeamPlan
from swarm.errors import BadRequest, ServerUnreachable, Unavailable
from swarm.schemas import EndEpisodeResponse
from swarm.types import EpisodeType, Task, WorkflowOutput

T = TypeVar("T")
Client = TypeVar("Client", SwarmClient, AsyncSwarmClient)


@dataclass(slots=True)
class OpenEpisodes:
    """The episodes inside `with team.open_episodes(task)`. Give every client an entry in `outputs` to have them ended.

    `receipts` says what became of each, once the block is left.
    """

    task: Task
    credentials: Mapping[str, Credentials]
    outputs: dict[str, WorkflowOutput] = field(default_factory=dict[str, WorkflowOutput])
    receipts: Mapping[str, EndEpisodeResponse] = field(default_factory=dict[str, EndEpisodeResponse])


class _Team(Generic[Client]):
    """`clients` by name. The first one's server is the coordinator, which the other servers must be able to reach under
    the address that its client has.

    Every program that uses the same servers must name them in the same order: each waits at one server while it holds
    an episode of those before it.
    """

    def __init__(self, clients: Mapping[str, Client]) -> None:
        if not clients:
            raise BadRequest("a team needs at least one client", param="clients")
        self.clients = dict(clients)
        # By the coordinator's episode, so that an end that is tried again is the same transaction.
        self._transactions: dict[str, str] = {}

    def _begin(
        self,
        task: Task,
        episode_type: EpisodeType | str,
        discard_episode_timeout: float,
        lease_s: float | None,
        wait_timeout: float,
    ) -> TeamPlan[dict[str, tuple[str, Credentials]]]:
        def begin(client: SwarmClient | AsyncSwarmClient) -> Any:
            return client.begin_episode(
                episode_type,
                discard_episode_timeout,
                task_id=task.task_id,
                data_source=task.data_source,
                lease_s=lease_s,
                wait_timeout=wait_timeout,
            )

        return team_calls.begin_all(list(self.clients), begin)

    def _end(
        self, task: Task, episodes: Begun, outputs: Mapping[str, WorkflowOutput], wait_timeout: float
    ) -> TeamPlan[dict[str, EndEpisodeResponse]]:
        ids = _ids(episodes)
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
        ids = _ids(episodes)
        self._transactions.pop(ids.get(next(iter(self.clients)), ""), None)
        return team_calls.abort_all({name: ids[name] for name in self.clients if name in ids}, reason)


class SwarmTeam(_Team[SwarmClient]):
    """Several SwarmClients as one, for any number of threads."""

    def begin_all(
        self,
        task: Task,
        episode_type: EpisodeType | str = EpisodeType.TRAIN,
        discard_episode_timeout: float = 240.0,
        *,
        lease_s: float | None = DEFAULT_LEASE_S,
        wait_timeout: float = DEFAULT_WAIT_S,
    ) -> dict[str, tuple[str, Credentials]]:
        """Begin an episode on every server: ids and credentials by name. All or none; raises as begin_episode."""
        return self._run(self._begin(task, episode_type, discard_episode_timeout, lease_s, wait_timeout))

    def end_all(
        self,
        task: Task,
        episodes: Begun,
        outputs: Mapping[str, WorkflowOutput],
        *,
        wait_timeout: float = DEFAULT_END_WAIT_S,
    ) -> dict[str, EndEpisodeResponse]:
        """Report a result to every server: it counts on all of them or on none, also if this program dies meanwhile.

        Returns what became of each. One that is `prepared` could not be reached and counts once it is back. Raises what
        kept it from counting, after aborting the rest; or ServerUnreachable if it is not known whether it counts: the
        same call again is the same transaction, and without it the servers settle it among themselves.
        """
        return self._run(self._end(task, episodes, outputs, wait_timeout))

    def abort_all(self, episodes: Begun, reason: str = "client_abort") -> None:
        """Give all of them up. What cannot be told to a server, it finds out by itself."""
        self._run(self._abort(episodes, reason))

    @contextmanager
    def open_episodes(
        self,
        task: Task,
        episode_type: EpisodeType | str = EpisodeType.TRAIN,
        discard_episode_timeout: float = 240.0,
        *,
        lease_s: float | None = DEFAULT_LEASE_S,
        wait_timeout: float = DEFAULT_WAIT_S,
    ) -> Generator[OpenEpisodes]:
        """Begin episodes for the length of a block; end them if it has set an output for each, else abort them.

        An exception inside the block aborts them and is raised again.
        """
        begun = self.begin_all(task, episode_type, discard_episode_timeout, lease_s=lease_s, wait_timeout=wait_timeout)
        opened = _opened(task, begun)
        try:
            yield opened
        except BaseException as error:
            self.abort_all(begun, abort_reason(error))
            raise
        if set(opened.outputs) == set(begun):
            opened.receipts = self.end_all(task, begun, opened.outputs)
        else:
            self.abort_all(begun, "no_result")

    def _run(self, plan: TeamPlan[T]) -> T:
        try:
            step = next(plan)
            while True:
                try:
                    result = step.action(self.clients[step.name])
                except BaseException as error:  # noqa: BLE001 - the plan raises it again
                    step = plan.throw(error)
                else:
                    step = plan.send(result)
        except StopIteration as finished:
            return finished.value


class AsyncSwarmTeam(_Team[AsyncSwarmClient]):
    """SwarmTeam for the tasks of one loop: the same methods, awaited."""

    async def begin_all(
        self,
        task: Task,
        episode_type: EpisodeType | str = EpisodeType.TRAIN,
        discard_episode_timeout: float = 240.0,
        *,
        lease_s: float | None = DEFAULT_LEASE_S,
        wait_timeout: float = DEFAULT_WAIT_S,
    ) -> dict[str, tuple[str, Credentials]]:
        return await self._run(self._begin(task, episode_type, discard_episode_timeout, lease_s, wait_timeout))

    async def end_all(
        self,
        task: Task,
        episodes: Begun,
        outputs: Mapping[str, WorkflowOutput],
        *,
        wait_timeout: float = DEFAULT_END_WAIT_S,
    ) -> dict[str, EndEpisodeResponse]:
        return await self._run(self._end(task, episodes, outputs, wait_timeout))

    async def abort_all(self, episodes: Begun, reason: str = "client_abort") -> None:
        await self._run(self._abort(episodes, reason))

    @asynccontextmanager
    async def open_episodes(
        self,
        task: Task,
        episode_type: EpisodeType | str = EpisodeType.TRAIN,
        discard_episode_timeout: float = 240.0,
        *,
        lease_s: float | None = DEFAULT_LEASE_S,
        wait_timeout: float = DEFAULT_WAIT_S,
    ) -> AsyncGenerator[OpenEpisodes]:
        begun = await self.begin_all(
            task, episode_type, discard_episode_timeout, lease_s=lease_s, wait_timeout=wait_timeout
        )
        opened = _opened(task, begun)
        try:
            yield opened
        except BaseException as error:
            await self.abort_all(begun, abort_reason(error))
            raise
        if set(opened.outputs) == set(begun):
            opened.receipts = await self.end_all(task, begun, opened.outputs)
        else:
            await self.abort_all(begun, "no_result")

    async def _run(self, plan: TeamPlan[T]) -> T:
        try:
            step = next(plan)
            while True:
                try:
                    result = step.action(self.clients[step.name])
                    if inspect.isawaitable(result):
                        result = await result
                except BaseException as error:  # noqa: BLE001 - the plan raises it again
                    step = plan.throw(error)
                else:
                    step = plan.send(result)
        except StopIteration as finished:
            return finished.value


def _ids(episodes: Begun) -> dict[str, str]:
    return {name: episode_id for name, (episode_id, _) in episodes.items()}


def _opened(task: Task, begun: Begun) -> OpenEpisodes:
    return OpenEpisodes(task, {name: credentials for name, (_, credentials) in begun.items()})
