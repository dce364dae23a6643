"""AsyncSwarmClient: SwarmClient for one asyncio loop, the same methods, awaited.

Place in the flow: what a rollout program holds. It only carries out the plans of calls.py and episode_calls.py; what a
method does is said at SwarmClient.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx
from pydantic import BaseModel

from swarm.client.connections import AsyncConnectionStack
from swarm.client.credentials import Credentials
from swarm.client.episode import (
    DEFAULT_END_WAIT_S,
    DEFAULT_TIMEOUT_S,
    DEFAULT_WAIT_S,
    OpenEpisode,
    abort_reason,
    default_client_id,
    describe,
    log_failed_abort,
    name_task,
)
from swarm.client.events import EventFeed
from swarm.client.heartbeat import HeartbeatTask
from swarm.client.leases import DEFAULT_LEASE_S, Leases
from swarm.client.plans import calls, episode_calls, transaction_calls
from swarm.client.plans.exchange import Outcome, Pause, Plan
from swarm.errors import SwarmError
from swarm.schemas import (
    Acknowledged,
    AgreeResponse,
    AuditView,
    BatchPolicies,
    CheckpointResponse,
    EndEpisodeResponse,
    EpisodeDetail,
    EpisodeView,
    EventView,
    JobView,
    MetricPointView,
    Status,
)
from swarm.types import EpisodeType, Task, WorkflowOutput

T = TypeVar("T")


class AsyncSwarmClient:
    """SwarmClient for the tasks of one loop. Close it, or use it as a context manager."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        client_id: str | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._server = describe(url, token, timeout)
        self.client_id = client_id or default_client_id()
        self._http = httpx.AsyncClient(transport=transport or AsyncConnectionStack())
        self._leases = Leases()
        self._heartbeat = HeartbeatTask(self._leases, self._beat)

    @property
    def url(self) -> str:
        return self._server.url

    async def close(self) -> None:
        await self._heartbeat.close()
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def auto_sync_train_config_and_start_engine(
        self, job: BaseModel | Mapping[str, Any], force_restart: bool = False, *, boot_timeout: float = 300.0
    ) -> Status:
        return await self._run(calls.sync_and_start(self._server, job, force_restart, boot_timeout))

    async def begin_episode(
        self,
        episode_type: EpisodeType | str = EpisodeType.TRAIN,
        discard_episode_timeout: float = 240.0,
        *,
        task_id: str | None = None,
        data_source: str | None = None,
        lease_s: float | None = DEFAULT_LEASE_S,
        wait_timeout: float = DEFAULT_WAIT_S,
    ) -> tuple[str, Credentials]:
        task_id, data_source = name_task(task_id, data_source)
        episode_id, credentials = await self._run(
            episode_calls.begin_episode(
                self._server,
                self._leases,
                client_id=self.client_id,
                episode_type=episode_type,
                idle_timeout_s=discard_episode_timeout,
                task_id=task_id,
                data_source=data_source,
                lease_s=lease_s,
                wait_timeout_s=wait_timeout,
            )
        )
        if lease_s is not None:
            self._heartbeat.keep_alive(lease_s)
        return episode_id, credentials

    async def end_episode(
        self,
        task: Task,
        episode_uuid: str,
        workflow_output: WorkflowOutput,
        *,
        wait_timeout: float = DEFAULT_END_WAIT_S,
    ) -> EndEpisodeResponse:
        return await self._run(
            episode_calls.end_episode(
                self._server,
                self._leases,
                client_id=self.client_id,
                task=task,
                episode_id=episode_uuid,
                output=workflow_output,
                wait_timeout_s=wait_timeout,
            )
        )

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
        return await self._run(
            transaction_calls.prepare_episode(
                self._server,
                self._leases,
                client_id=self.client_id,
                task=task,
                episode_id=episode_uuid,
                output=workflow_output,
                transaction_id=transaction_id,
                coordinator=coordinator,
                wait_timeout_s=wait_timeout,
            )
        )

    async def commit_episode(
        self, episode_uuid: str, transaction_id: str, *, wait_timeout: float = DEFAULT_END_WAIT_S
    ) -> EndEpisodeResponse:
        plan = transaction_calls.commit_episode(self._server, self._leases, episode_uuid, transaction_id, wait_timeout)
        return await self._run(plan)

    def release_episode(self, episode_uuid: str) -> None:
        self._leases.release(episode_uuid)

    async def abort_episode(
        self, episode_uuid: str, reason: str = "client_abort", *, final: bool = False
    ) -> EpisodeView:
        return await self._run(episode_calls.abort_episode(self._server, self._leases, episode_uuid, reason, final))

    async def revise_reward(
        self,
        episode_uuid: str,
        reward: float,
        *,
        reason: str,
        is_success: bool | None = None,
        turn_rewards: Sequence[float] | None = None,
    ) -> EpisodeView:
        plan = episode_calls.revise_reward(
            self._server, episode_uuid, reward=reward, reason=reason, is_success=is_success, turn_rewards=turn_rewards
        )
        return await self._run(plan)

    async def heartbeat(self, episode_uuid: str) -> EpisodeView:
        return await self._run(episode_calls.heartbeat(self._server, self._leases, episode_uuid))

    @asynccontextmanager
    async def open_episode(
        self,
        task: Task,
        episode_type: EpisodeType | str = EpisodeType.TRAIN,
        discard_episode_timeout: float = 240.0,
        *,
        lease_s: float | None = DEFAULT_LEASE_S,
        wait_timeout: float = DEFAULT_WAIT_S,
    ) -> AsyncGenerator[OpenEpisode]:
        episode_id, credentials = await self.begin_episode(
            episode_type,
            discard_episode_timeout,
            task_id=task.task_id,
            data_source=task.data_source,
            lease_s=lease_s,
            wait_timeout=wait_timeout,
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

    async def status(self) -> Status:
        return await self._run(calls.status(self._server))

    async def job(self) -> JobView:
        return await self._run(calls.job(self._server))

    async def metrics(self, after_step: int = 0) -> list[MetricPointView]:
        return await self._run(calls.metrics(self._server, after_step))

    async def episode(self, episode_uuid: str) -> EpisodeDetail:
        return await self._run(episode_calls.episode(self._server, episode_uuid))

    async def episodes(self, *, limit: int = 1000, **filters: str | None) -> list[EpisodeView]:
        return await self._run(episode_calls.episodes(self._server, filters, limit))

    async def batch_policy(self) -> BatchPolicies:
        return await self._run(calls.batch_policy(self._server))

    async def update_batch_policy(self, **settings: Any) -> BatchPolicies:
        return await self._run(calls.update_batch_policy(self._server, settings))

    async def set_mixture(self, mixture: Mapping[str, float]) -> BatchPolicies:
        return await self.update_batch_policy(mixture=dict(mixture))

    async def agree_to_train(self) -> AgreeResponse:
        return await self._run(calls.agree_to_train(self._server, self.client_id))

    async def stop_engine(self) -> Acknowledged:
        return await self._run(calls.stop_engine(self._server))

    async def shut_down(self) -> Acknowledged:
        return await self._run(calls.shut_down(self._server))

    async def save_checkpoint(self, *, timeout: float = calls.SLOW_CALL_S) -> CheckpointResponse:
        return await self._run(calls.save_checkpoint(self._server, timeout))

    async def load_checkpoint(self, step: int, *, timeout: float = calls.SLOW_CALL_S) -> Acknowledged:
        return await self._run(calls.load_checkpoint(self._server, step, timeout))

    async def wait_until_step(self, step: int, timeout: float) -> Status:
        return await self._run(calls.wait_until_step(self._server, step, timeout))

    async def past_events(self, after_id: int = 0) -> list[EventView]:
        return await self._run(calls.past_events(self._server, after_id))

    async def events(self, after_id: int = 0, *, patience: float = DEFAULT_WAIT_S) -> AsyncGenerator[EventView]:
        feed = EventFeed(self._server, after_id, patience)
        while True:
            try:
                response = await self._http.send(feed.request(), stream=True)
                try:
                    if feed.opened(response):
                        async for line in response.aiter_lines():
                            if (event := feed.take(line)) is not None:
                                yield event
                        pause_s = feed.ended()
                    else:
                        await response.aread()
                        pause_s = feed.refused(response)
                finally:
                    await response.aclose()
            except httpx.TransportError as failure:
                pause_s = feed.lost(failure)
            await asyncio.sleep(pause_s)

    async def audit(self, after_id: int = 0) -> list[AuditView]:
        return await self._run(calls.audit(self._server, after_id))

    async def _beat(self, episode_ids: Sequence[str]) -> None:
        await self._run(episode_calls.heartbeat_all(self._server, self._leases, self.client_id, episode_ids))

    async def _run(self, plan: Plan[T]) -> T:
        try:
            step = next(plan)
            while True:
                step = plan.send(await self._carry_out(step))
        except StopIteration as finished:
            return finished.value

    async def _carry_out(self, step: httpx.Request | Pause) -> Outcome:
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
            return None
        try:
            return await self._http.send(step)
        except httpx.TransportError as error:
            return error
