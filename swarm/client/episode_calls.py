"""The calls of a client that concern its episodes: begin, end, abort, rewards, heartbeats, records and transactions."""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Unpack
from urllib.parse import quote

from pydantic import BaseModel

from swarm.client.episode import (
    DEFAULT_END_WAIT_S,
    DEFAULT_WAIT_S,
    Credentials,
    EpisodeOptions,
    EpisodeSampling,
    OpenEpisode,
    abort_reason,
    credentials_of,
    current_attempt,
    log_failed_abort,
    name_task,
)
from swarm.client.exchange import Server, checked
from swarm.client.heartbeat import BEAT_LIMIT_S, DEFAULT_LEASE_S, Heartbeats, Leases
from swarm.client.io import Io, run
from swarm.client.server_calls import ServerCalls
from swarm.errors import Conflict, EpisodeEnded, NotFound, SwarmError
from swarm.schemas import (
    AbortEpisodeRequest,
    BeginEpisodeRequest,
    BeginEpisodeResponse,
    CommitEpisodeRequest,
    EndEpisodeRequest,
    EndEpisodeResponse,
    EpisodeDetail,
    EpisodePage,
    EpisodeView,
    HeartbeatRequest,
    HeartbeatResponse,
    PrepareEpisodeRequest,
    ReviseRewardRequest,
    newest_receipt,
)
from swarm.types import EpisodeType, Task, WorkflowOutput

logger = logging.getLogger(__name__)

# The longest wait of a begin on the server, because proxies cut connections that are silent for a minute.
MAX_WAIT_S = 25.0
# The most episodes that one heartbeat may list.
MAX_LISTED = 20_000


class ClientCalls(ServerCalls):
    """All calls to one server. While there are running episodes, a worker sends heartbeats."""

    def __init__(self, server: Server, client_id: str, io: Io) -> None:
        super().__init__(server, client_id, io)
        self._leases = Leases()
        self._heartbeats = Heartbeats(self._leases, self._beat, io.worker)

    async def close(self) -> None:
        """Close the connections and stop the heartbeats.

        The server aborts the episodes that are still running as soon as their leases are over.
        """
        await self._heartbeats.close()
        await self._io.close()

    async def begin_episode(
        self,
        episode_type: EpisodeType | str = EpisodeType.TRAIN,
        discard_episode_timeout: float = 240.0,
        *,
        task_id: str | None = None,
        data_source: str | None = None,
        lease_s: float | None = DEFAULT_LEASE_S,
        wait_timeout: float = DEFAULT_WAIT_S,
        **sampling: Unpack[EpisodeSampling],
    ) -> tuple[str, Credentials]:
        """Begin an episode; return its id and the credentials for the agent.

        Give a `task_id`: the server then admits exactly as many episodes as the groups of a batch need. Inside
        run_episodes_until_all_complete it defaults to the id of the current Task.

        The server aborts the episode after `discard_episode_timeout` seconds without a model call and without a call
        of `heartbeat`. The client sends heartbeats of its own for all its episodes. Once these stop, the server aborts
        the episode within `lease_s` seconds. With `lease_s=None` there is no lease and the client sends none.

        The server takes no episode while weights change, while a batch has all its groups, and while the engine boots
        or is stopped. The call then waits up to `wait_timeout` seconds, also for a server that does not answer.
        Afterwards it raises RolloutPaused, EngineNotReady or ServerUnreachable. It raises TrainingComplete after the
        last step, and FailedEngine as soon as the engine has failed.

        `sampling` takes `sampling_seed`, `temperature`, `max_calls`, `max_tokens` and `fixed_sampling`; EpisodeSampling
        explains them.
        """
        task_id, source = name_task(task_id, data_source)
        max_wait_s = max(0.0, min(MAX_WAIT_S, wait_timeout))
        body = checked(
            lambda: BeginEpisodeRequest(
                begin_secret=secrets.token_urlsafe(24),
                episode_type=EpisodeType(episode_type),
                client_id=self.client_id,
                task_id=task_id,
                data_source=source,
                lease_s=lease_s,
                idle_timeout_s=discard_episode_timeout,
                wait_s=max_wait_s,
                **sampling,
            )
        )
        begun = await self._post(
            "episodes/begin", BeginEpisodeResponse, body, patience_s=wait_timeout, answer_s=max_wait_s
        )
        self._leases.hold(begun.episode_id, lease_s)
        if lease_s is not None:
            self._heartbeats.keep_alive(lease_s)
        # The runner calls functions in threads, so it can abort the episodes of blocking clients only.
        if self._io.is_blocking and (attempt := current_attempt.get()) is not None:
            attempt.add(self._leases, begun.episode_id, self._abort_now)
        return begun.episode_id, credentials_of(begun, self.url)

    async def end_episode(
        self,
        task: Task,
        episode_uuid: str,
        workflow_output: WorkflowOutput,
        *,
        wait_timeout: float = DEFAULT_END_WAIT_S,
    ) -> EndEpisodeResponse:
        """End an episode with its result; return the server's receipt.

        The result counts once, however often the call is repeated. On return it is durable: it survives a crash of the
        server. If the server does not answer, the call waits up to `wait_timeout` seconds, and at least `timeout`.

        Raises EpisodeEnded if the server has aborted the episode, and IdempotencyMismatch if it was ended with another
        result. Raises BadRequest for a reward that is not a finite number.
        """
        self._refuse_lost(episode_uuid)
        body = checked(lambda: EndEpisodeRequest(**self._reported(task, episode_uuid, workflow_output)))
        return await self._finish(episode_uuid, "/end", body, wait_timeout)

    async def prepare_episode(
        self,
        task: Task,
        episode_uuid: str,
        workflow_output: WorkflowOutput,
        *,
        transaction_id: str,
        coordinator: str | None,
        wait_timeout: float = DEFAULT_END_WAIT_S,
    ) -> EndEpisodeResponse:
        """Prepare the end of an episode: the first phase of a two-phase commit over several servers.

        Use SwarmTeam, which does both phases. `coordinator` is the address of the server whose commit decides, and
        None on that server itself. The episode keeps its lease until it is committed, aborted or released. Raises the
        errors of end_episode, and Conflict if another transaction has prepared the episode.
        """
        self._refuse_lost(episode_uuid)
        body = checked(
            lambda: PrepareEpisodeRequest(
                **self._reported(task, episode_uuid, workflow_output),
                transaction_id=transaction_id,
                coordinator=coordinator,
            )
        )
        patience_s = max(self._server.timeout_s, wait_timeout)
        return await self._post(_path(episode_uuid, "/prepare"), EndEpisodeResponse, body, patience_s=patience_s)

    async def commit_episode(
        self, episode_uuid: str, transaction_id: str, *, wait_timeout: float = DEFAULT_END_WAIT_S
    ) -> EndEpisodeResponse:
        """Commit a prepared episode, so that it counts. Raises EpisodeEnded if the server has aborted it."""
        body = checked(lambda: CommitEpisodeRequest(transaction_id=transaction_id))
        return await self._finish(episode_uuid, "/commit", body, wait_timeout)

    def release_episode(self, episode_uuid: str) -> None:
        """Stop the heartbeats of an episode.

        Its server then aborts it. If the episode is prepared, the server asks the coordinator how it ended.
        """
        self._leases.release(episode_uuid)

    async def abort_episode(
        self, episode_uuid: str, reason: str = "client_abort", *, final: bool = False
    ) -> EpisodeView:
        """Abort an episode; the server counts it under `reason` and does not train it.

        With `final` no other attempt follows, and the group of its task waits for none.
        """
        body = checked(lambda: AbortEpisodeRequest(reason=reason, final=final))
        # The heartbeats end also if the abort fails. The server then ends the episode when its lease is over.
        self._leases.release(episode_uuid)
        return await self._post(_path(episode_uuid, "/abort"), EpisodeView, body)

    async def revise_reward(
        self,
        episode_uuid: str,
        reward: float,
        *,
        reason: str,
        is_success: bool | None = None,
        turn_rewards: Sequence[float] | None = None,
        rewards: Mapping[str, float] | None = None,
    ) -> EpisodeView:
        """Replace the reward of an ended episode.

        Values that are None stay as reported. The server keeps the former reward and the `reason`. Raises EpisodeEnded
        once the batch of the episode is closed.
        """
        changes: dict[str, Any] = {
            "is_success": is_success,
            "turn_rewards": None if turn_rewards is None else list(turn_rewards),
            "rewards": None if rewards is None else dict(rewards),
        }
        given = {name: value for name, value in changes.items() if value is not None}
        body = checked(lambda: ReviseRewardRequest(reward=reward, reason=reason, **given))
        return await self._post(_path(episode_uuid, "/reward"), EpisodeView, body)

    async def heartbeat(self, episode_uuid: str) -> EpisodeView:
        """Restart the idle timeout of an episode whose agent works without a model call.

        The heartbeats that the client sends by itself renew only the lease. Raises EpisodeEnded if the episode is over.
        """
        self._refuse_lost(episode_uuid)
        return await self._post(_path(episode_uuid, "/heartbeat"), EpisodeView)

    @asynccontextmanager
    async def open_episode(
        self,
        task: Task,
        episode_type: EpisodeType | str = EpisodeType.TRAIN,
        discard_episode_timeout: float = 240.0,
        **options: Unpack[EpisodeOptions],
    ) -> AsyncGenerator[OpenEpisode]:
        """Begin an episode for a `with` block, and end it after the block with the `output` that the block has set.

        Without an output the episode is aborted. An exception inside the block aborts it too, and is raised again.
        `options` are those of `begin_episode`.
        """
        episode_id, credentials = await self.begin_episode(
            episode_type,
            discard_episode_timeout,
            task_id=task.task_id,
            data_source=task.data_source,
            **options,
        )
        episode = OpenEpisode(task, episode_id, credentials)
        try:
            yield episode
            if episode.output is not None:
                episode.receipt = await self.end_episode(task, episode_id, episode.output)
        except BaseException as error:
            try:
                await self.abort_episode(episode_id, abort_reason(error))
            except SwarmError as failure:
                log_failed_abort(episode_id, failure)
            raise
        if episode.output is None:
            await self.abort_episode(episode_id, "no_result")

    async def episode(self, episode_uuid: str) -> EpisodeDetail:
        """Return the full record of one episode, with its tokens. Raises NotFound."""
        return await self._get(_path(episode_uuid), EpisodeDetail)

    async def episodes(self, *, limit: int = 1000, **filters: str | None) -> list[EpisodeView]:
        """Return episodes, newest first. Filters: state, episode_type, client_id, task_id, batch_id."""
        query: dict[str, str | int] = {name: value for name, value in filters.items() if value is not None}
        found: list[EpisodeView] = []
        while len(found) < limit:
            query["limit"] = min(1000, limit - len(found))
            page = await self._get("episodes", EpisodePage, **query)
            found.extend(page.episodes)
            if page.next_cursor is None:
                break
            query["cursor"] = page.next_cursor
        return found

    async def _finish(self, episode_id: str, suffix: str, body: BaseModel, wait_timeout: float) -> EndEpisodeResponse:
        """Send the call that ends an episode with its result."""
        self._leases.end(episode_id)
        patience_s = max(self._server.timeout_s, wait_timeout)
        try:
            receipt = await self._post(_path(episode_id, suffix), EndEpisodeResponse, body, patience_s=patience_s)
        except (Conflict, NotFound):
            self._leases.release(episode_id)
            raise
        self._leases.release(episode_id)
        self._server.receipt = newest_receipt(self._server.receipt, receipt.receipt)
        if self._io.is_blocking and (attempt := current_attempt.get()) is not None:
            attempt.note_end(self._leases)
        return receipt

    async def _beat(self, episode_ids: Sequence[str]) -> None:
        """Send one heartbeat for all the episodes. It is not repeated, because the next one follows soon."""
        sooner_s = min(0.0, BEAT_LIMIT_S - self._server.timeout_s)
        for start in range(0, len(episode_ids), MAX_LISTED):
            listed = list(episode_ids[start : start + MAX_LISTED])
            body = HeartbeatRequest(client_id=self.client_id, episode_ids=listed)
            answer = await self._post("heartbeat", HeartbeatResponse, body, patience_s=0.0, answer_s=sooner_s)
            lost = self._leases.lose(answer.ended)
            if lost:
                logger.warning(
                    "the server aborted %d episodes; the first is %s: %s", len(lost), lost[0], answer.ended[lost[0]]
                )
            for warning in self._leases.unheard(answer.warnings):
                logger.warning("the server warns about client %s: %s", self.client_id, warning)

    def _abort_now(self, episode_uuid: str, reason: str, *, final: bool) -> None:
        run(self.abort_episode(episode_uuid, reason, final=final))

    def _refuse_lost(self, episode_id: str) -> None:
        if (reason := self._leases.lost(episode_id)) is not None:
            raise EpisodeEnded(f"episode {episode_id} is over ({reason}): begin another one")

    def _reported(self, task: Task, episode_id: str, output: WorkflowOutput) -> dict[str, Any]:
        """Return the fields of a reported result, for the request body."""
        return {
            "task_id": task.task_id,
            "reward": output.reward,
            "is_success": output.is_success,
            "turn_rewards": None if output.turn_rewards is None else list(output.turn_rewards),
            "rewards": None if output.rewards is None else dict(output.rewards),
            "replies": None if output.replies is None else list(output.replies),
            "metadata": dict(output.metadata),
            "client_id": self.client_id,
            "idempotency_key": episode_id,
        }


def _path(episode_id: str, suffix: str = "") -> str:
    return f"episodes/{quote(episode_id, safe='')}{suffix}"
