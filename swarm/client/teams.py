"""Teams of clients: one episode on several servers, each with its own model, that counts on all of them or on none."""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Unpack

from swarm.client.client import SwarmClient
from swarm.client.episode import (
    DEFAULT_END_WAIT_S,
    Credentials,
    EpisodeOptions,
    abort_reason,
    log_failed_abort,
)
from swarm.client.episode_calls import ClientCalls
from swarm.client.io import Blocking, blocking, blocking_block
from swarm.errors import BadRequest, Conflict, NotFound, ServerUnreachable, SwarmError, Unavailable
from swarm.schemas import EndEpisodeResponse, EpisodeState
from swarm.types import EpisodeType, Task, WorkflowOutput

logger = logging.getLogger(__name__)

Begun = Mapping[str, tuple[str, Credentials]]
"""Episode id and credentials by the name of the client."""


@dataclass(slots=True)
class OpenEpisodes:
    """The episodes inside `with team.open_episodes(task)`; set an entry of `outputs` for each client to end them.

    `receipts` are the servers' answers by the name of the client, after the block.
    """

    task: Task
    credentials: Mapping[str, Credentials]
    outputs: dict[str, WorkflowOutput] = field(default_factory=dict[str, WorkflowOutput])
    receipts: Mapping[str, EndEpisodeResponse] = field(default_factory=dict[str, EndEpisodeResponse])


class AsyncSwarmTeam:
    """Several clients used as one, for the tasks of one loop. The clients are given by name.

    The server of the first client is the coordinator. The other servers must be able to reach it under the address of
    its client. All programs that use the same servers must name them in the same order. Otherwise they can wait for
    each other for ever, because each waits for one server with an episode open on those before it.

    The coordinator's episode is prepared before all others, so that it can answer a server that asks it. Its commit or
    its abort decides for all. If the program dies, the servers keep the promise by themselves (docs/architecture.md).
    """

    def __init__(self, clients: Mapping[str, ClientCalls]) -> None:
        if not clients:
            raise BadRequest("a team needs at least one client", param="clients")
        self.clients = dict(clients)
        # By the coordinator's episode, so that a repeated end continues the same transaction.
        self._transactions: dict[str, str] = {}

    async def begin_all(
        self,
        task: Task,
        episode_type: EpisodeType | str = EpisodeType.TRAIN,
        discard_episode_timeout: float = 240.0,
        **options: Unpack[EpisodeOptions],
    ) -> dict[str, tuple[str, Credentials]]:
        """Begin an episode on every server; return ids and credentials by the name of the client.

        If one cannot begin, the others are aborted. `options` are those of begin_episode, and apply to each episode.
        Raises the errors of begin_episode.
        """
        begun: dict[str, tuple[str, Credentials]] = {}
        try:
            for name, client in self.clients.items():
                begun[name] = await client.begin_episode(
                    episode_type,
                    discard_episode_timeout,
                    task_id=task.task_id,
                    data_source=task.data_source,
                    **options,
                )
        except BaseException:
            await self._abort(_ids(begun), "not_begun_everywhere")
            raise
        return begun

    async def end_all(
        self,
        task: Task,
        episodes: Begun,
        outputs: Mapping[str, WorkflowOutput],
        *,
        wait_timeout: float = DEFAULT_END_WAIT_S,
    ) -> dict[str, EndEpisodeResponse]:
        """End the episodes, so that they count on all servers or on none, also if this program dies meanwhile.

        Returns the receipt of each server. A receipt in state `prepared` is of a server that did not answer; its
        episode counts once the server is back. If an episode cannot count, the others are aborted and its error is
        raised. ServerUnreachable means that the outcome is not known. A repeated call then continues the same
        transaction; without it the servers decide among themselves.
        """
        self._require_names("episodes", episodes)
        self._require_names("outputs", outputs)
        ids = _ids(episodes)
        deciding = ids[next(iter(self.clients))]
        # A random secret of 256 bits.
        transaction_id = self._transactions.setdefault(deciding, secrets.token_urlsafe(32))
        try:
            await self._prepare_all(task, ids, outputs, transaction_id, wait_timeout)
            receipts = await self._commit_all(ids, transaction_id, wait_timeout)
        except (ServerUnreachable, Unavailable):
            raise
        except BaseException:
            self._transactions.pop(deciding, None)
            raise
        self._transactions.pop(deciding, None)
        return receipts

    async def abort_all(self, episodes: Begun, reason: str = "client_abort") -> None:
        """Abort all episodes. A server that does not answer aborts its episode by itself later."""
        ids = _ids(episodes)
        self._transactions.pop(ids.get(next(iter(self.clients)), ""), None)
        await self._abort(ids, reason)

    @asynccontextmanager
    async def open_episodes(
        self,
        task: Task,
        episode_type: EpisodeType | str = EpisodeType.TRAIN,
        discard_episode_timeout: float = 240.0,
        **options: Unpack[EpisodeOptions],
    ) -> AsyncGenerator[OpenEpisodes]:
        """Begin episodes for a `with` block, and end them after it if it has set an output for each client.

        Otherwise they are aborted. An exception inside the block aborts them too, and is raised again.
        """
        begun = await self.begin_all(task, episode_type, discard_episode_timeout, **options)
        episodes = OpenEpisodes(task, {name: credentials for name, (_, credentials) in begun.items()})
        try:
            yield episodes
        except BaseException as error:
            await self.abort_all(begun, abort_reason(error))
            raise
        if set(episodes.outputs) == set(begun):
            episodes.receipts = await self.end_all(task, begun, episodes.outputs)
        else:
            await self.abort_all(begun, "no_result")

    async def _prepare_all(
        self,
        task: Task,
        ids: Mapping[str, str],
        outputs: Mapping[str, WorkflowOutput],
        transaction_id: str,
        wait_timeout: float,
    ) -> None:
        first, *_ = self.clients
        try:
            for name, client in self.clients.items():
                await client.prepare_episode(
                    task,
                    ids[name],
                    outputs[name],
                    transaction_id=transaction_id,
                    coordinator=None if name == first else self.clients[first].url,
                    wait_timeout=wait_timeout,
                )
        except BaseException:
            await self._abort(ids, "not_prepared_everywhere")
            raise

    async def _commit_all(
        self, ids: Mapping[str, str], transaction_id: str, wait_timeout: float
    ) -> dict[str, EndEpisodeResponse]:
        first, *others = self.clients
        try:
            decided = await self.clients[first].commit_episode(ids[first], transaction_id, wait_timeout=wait_timeout)
        except (Conflict, NotFound):
            await self._abort({name: ids[name] for name in others}, "transaction_aborted")
            raise
        except BaseException:
            # It is not known here whether the commit reached the server. The servers decide among themselves.
            for name, client in self.clients.items():
                client.release_episode(ids[name])
            raise
        receipts = {first: decided}
        failure: SwarmError | None = None
        for name in others:
            client = self.clients[name]
            try:
                receipts[name] = await client.commit_episode(ids[name], transaction_id, wait_timeout=wait_timeout)
            except (ServerUnreachable, Unavailable) as error:
                logger.warning("%s did not answer and will commit by itself once it is back: %s", name, error.message)
                client.release_episode(ids[name])
                receipts[name] = EndEpisodeResponse(
                    episode_id=ids[name], state=EpisodeState.PREPARED, outcome=None, batch_id=None, replayed=False
                )
            except (Conflict, NotFound) as error:
                # The decision is made, so the other servers still have to commit.
                logger.error("%s could not commit, although the coordinator has: %s", name, error.message)
                failure = failure or error
        if failure is not None:
            raise failure
        return receipts

    async def _abort(self, ids: Mapping[str, str], reason: str) -> None:
        """Abort episodes. If a call fails, the server aborts the episode later, or asks the coordinator."""
        for name, client in self.clients.items():
            if name in ids:
                try:
                    await client.abort_episode(ids[name], reason)
                except SwarmError as error:
                    log_failed_abort(ids[name], error)

    def _require_names(self, what: str, given: Mapping[str, object]) -> None:
        if set(given) != set(self.clients):
            names = ", ".join(self.clients)
            raise BadRequest(f"{what}: give one for each of {names}, not for {', '.join(given) or 'none'}")


class SwarmTeam(Blocking[AsyncSwarmTeam]):
    """Several clients used as one, for any number of threads. It has the methods of AsyncSwarmTeam, which block."""

    def __init__(self, clients: Mapping[str, SwarmClient]) -> None:
        super().__init__(AsyncSwarmTeam({name: client.calls for name, client in clients.items()}))
        self.clients = dict(clients)

    begin_all = blocking(AsyncSwarmTeam.begin_all)
    end_all = blocking(AsyncSwarmTeam.end_all)
    abort_all = blocking(AsyncSwarmTeam.abort_all)
    open_episodes = blocking_block(AsyncSwarmTeam.open_episodes)


def _ids(episodes: Begun) -> dict[str, str]:
    return {name: episode_id for name, (episode_id, _) in episodes.items()}
