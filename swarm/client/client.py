"""SwarmClient and AsyncSwarmClient: a swarm server as an object, for threads and for asyncio.

Place in the flow: what a rollout program holds. Both only carry out the plans of calls.py, so they cannot differ. They
know nothing of how a model is served or trained.

Every method raises the domain error that the server names (swarm.errors), or ServerUnreachable. `timeout` bounds one
call with its retries; methods that wait for something take a limit of their own.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
import time
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx
from pydantic import BaseModel

from swarm.client import calls
from swarm.client.connections import AsyncConnectionStack, ConnectionStack
from swarm.client.credentials import Credentials
from swarm.client.exchange import Outcome, Pause, Plan, Server
from swarm.errors import BadRequest, SwarmError
from swarm.schemas import (
    Acknowledged,
    CheckpointResponse,
    EndEpisodeResponse,
    EpisodeDetail,
    EpisodeView,
    JobView,
    MetricPointView,
    Status,
)
from swarm.types import EpisodeType, Task, WorkflowOutput

logger = logging.getLogger(__name__)

T = TypeVar("T")

DEFAULT_TIMEOUT_S = 30.0
# Longer than a training step of a small model; whoever trains a large one knows its step time and sets it.
DEFAULT_WAIT_S = 600.0


@dataclass(slots=True)
class OpenEpisode:
    """A begun episode inside `with client.open_episode(task)`. Set `output` to have it ended with that result.

    `receipt` says what became of it, once the block is left.
    """

    task: Task
    episode_id: str
    credentials: Credentials
    output: WorkflowOutput | None = None
    receipt: EndEpisodeResponse | None = None


class SwarmClient:
    """A swarm server, for any number of threads. Close it, or use it as a context manager."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        client_id: str | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """`client_id` names this program in the server's status (default: host and process). Raises BadRequest for a
        malformed url."""
        self._server = _describe(url, token, timeout)
        self.client_id = client_id or _default_client_id()
        self._http = httpx.Client(transport=transport or ConnectionStack())

    @property
    def url(self) -> str:
        return self._server.url

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def auto_sync_train_config_and_start_engine(
        self, job: BaseModel | Mapping[str, Any], force_restart: bool = False, *, boot_timeout: float = 300.0
    ) -> Status:
        """Give the server this TrainJob and wait until it serves. Joins a server that runs the same job already.

        `force_restart` stops whatever runs and starts the job anew, from the base weights; otherwise a stopped job
        goes on from its newest checkpoint. Raises JobInvalid, IllegalTransition while another job runs, EngineFailure
        if the engine does not boot, Unavailable after `boot_timeout` seconds.
        """
        return self._run(calls.sync_and_start(self._server, job, force_restart, boot_timeout))

    def begin_episode(
        self,
        episode_type: EpisodeType | str = EpisodeType.TRAIN,
        discard_episode_timeout: float = 240.0,
        *,
        task_id: str | None = None,
        wait_timeout: float = DEFAULT_WAIT_S,
    ) -> tuple[str, Credentials]:
        """Begin an episode; returns its id and the credentials to give to the agent.

        The server gives the episode up after `discard_episode_timeout` seconds without a model call or heartbeat.
        While the server cannot take an episode (weights are changing, the engine boots or is off) this waits up to
        `wait_timeout` seconds, then raises RolloutPaused or EngineNotReady. Raises TrainingComplete after the last
        step.
        """
        return self._run(
            calls.begin_episode(
                self._server,
                client_id=self.client_id,
                episode_type=episode_type,
                idle_timeout_s=discard_episode_timeout,
                task_id=task_id,
                wait_timeout_s=wait_timeout,
            )
        )

    def end_episode(self, task: Task, episode_uuid: str, workflow_output: WorkflowOutput) -> EndEpisodeResponse:
        """Report the result, exactly once however often it is called. On return it survives a crash of the server.

        Raises EpisodeEnded if the episode was given up before, IdempotencyMismatch if it was ended with another result,
        BadRequest for a reward that is not a finite number.
        """
        return self._run(
            calls.end_episode(
                self._server, client_id=self.client_id, task=task, episode_id=episode_uuid, output=workflow_output
            )
        )

    def abort_episode(self, episode_uuid: str, reason: str = "client_abort") -> EpisodeView:
        """Give an episode up: a system error, never a reward. The server counts it under `reason`."""
        return self._run(calls.abort_episode(self._server, episode_uuid, reason))

    def heartbeat(self, episode_uuid: str) -> EpisodeView:
        """Keep an episode alive while its agent works without calling the model. Raises EpisodeEnded."""
        return self._run(calls.heartbeat(self._server, episode_uuid))

    @contextmanager
    def open_episode(
        self,
        task: Task,
        episode_type: EpisodeType | str = EpisodeType.TRAIN,
        discard_episode_timeout: float = 240.0,
        *,
        wait_timeout: float = DEFAULT_WAIT_S,
    ) -> Generator[OpenEpisode]:
        """Begin an episode for the length of a block; end it with the `output` set inside, or abort it.

        An exception inside the block aborts the episode and is raised again.
        """
        episode_id, credentials = self.begin_episode(
            episode_type, discard_episode_timeout, task_id=task.task_id, wait_timeout=wait_timeout
        )
        episode = OpenEpisode(task, episode_id, credentials)
        try:
            yield episode
            if episode.output is not None:
                episode.receipt = self.end_episode(task, episode_id, episode.output)
        except BaseException as error:
            try:
                self.abort_episode(episode_id, _abort_reason(error))
            except SwarmError as failure:
                _log_failed_abort(episode_id, failure)
            raise
        if episode.output is None:
            self.abort_episode(episode_id, "no_result")

    def status(self) -> Status:
        return self._run(calls.status(self._server))

    def job(self) -> JobView:
        return self._run(calls.job(self._server))

    def metrics(self, after_step: int = 0) -> list[MetricPointView]:
        """The metrics of every finished step beyond `after_step`, oldest first."""
        return self._run(calls.metrics(self._server, after_step))

    def episode(self, episode_uuid: str) -> EpisodeDetail:
        """Everything recorded of one episode, token by token. Raises NotFound."""
        return self._run(calls.episode(self._server, episode_uuid))

    def stop_engine(self) -> Acknowledged:
        """Abort what runs and free the model; the job stays known. Idempotent."""
        return self._run(calls.stop_engine(self._server))

    def shut_down(self) -> Acknowledged:
        """Stop the engine, then the server process itself."""
        return self._run(calls.shut_down(self._server))

    def save_checkpoint(self, *, timeout: float = 600.0) -> CheckpointResponse:
        """Write weights, optimizer and step to the server's disk. Raises IllegalTransition unless it is ROLLING."""
        return self._run(calls.save_checkpoint(self._server, timeout))

    def wait_until_step(self, step: int, timeout: float) -> Status:
        """Wait until `step` steps are done. Raises EngineFailure, EngineNotReady, or Unavailable after `timeout` s."""
        return self._run(calls.wait_until_step(self._server, step, timeout))

    def _run(self, plan: Plan[T]) -> T:
        try:
            step = next(plan)
            while True:
                step = plan.send(self._carry_out(step))
        except StopIteration as finished:
            return finished.value

    def _carry_out(self, step: httpx.Request | Pause) -> Outcome:
        if isinstance(step, Pause):
            time.sleep(step.seconds)
            return None
        try:
            return self._http.send(step)
        except httpx.TransportError as error:
            return error


class AsyncSwarmClient:
    """SwarmClient for one asyncio loop: the same methods, awaited."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        client_id: str | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._server = _describe(url, token, timeout)
        self.client_id = client_id or _default_client_id()
        self._http = httpx.AsyncClient(transport=transport or AsyncConnectionStack())

    @property
    def url(self) -> str:
        return self._server.url

    async def close(self) -> None:
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
        wait_timeout: float = DEFAULT_WAIT_S,
    ) -> tuple[str, Credentials]:
        return await self._run(
            calls.begin_episode(
                self._server,
                client_id=self.client_id,
                episode_type=episode_type,
                idle_timeout_s=discard_episode_timeout,
                task_id=task_id,
                wait_timeout_s=wait_timeout,
            )
        )

    async def end_episode(self, task: Task, episode_uuid: str, workflow_output: WorkflowOutput) -> EndEpisodeResponse:
        return await self._run(
            calls.end_episode(
                self._server, client_id=self.client_id, task=task, episode_id=episode_uuid, output=workflow_output
            )
        )

    async def abort_episode(self, episode_uuid: str, reason: str = "client_abort") -> EpisodeView:
        return await self._run(calls.abort_episode(self._server, episode_uuid, reason))

    async def heartbeat(self, episode_uuid: str) -> EpisodeView:
        return await self._run(calls.heartbeat(self._server, episode_uuid))

    @asynccontextmanager
    async def open_episode(
        self,
        task: Task,
        episode_type: EpisodeType | str = EpisodeType.TRAIN,
        discard_episode_timeout: float = 240.0,
        *,
        wait_timeout: float = DEFAULT_WAIT_S,
    ) -> AsyncGenerator[OpenEpisode]:
        episode_id, credentials = await self.begin_episode(
            episode_type, discard_episode_timeout, task_id=task.task_id, wait_timeout=wait_timeout
        )
        episode = OpenEpisode(task, episode_id, credentials)
        try:
            yield episode
            if episode.output is not None:
                episode.receipt = await self.end_episode(task, episode_id, episode.output)
        except BaseException as error:
            try:
                await self.abort_episode(episode_id, _abort_reason(error))
            except SwarmError as failure:
                _log_failed_abort(episode_id, failure)
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
        return await self._run(calls.episode(self._server, episode_uuid))

    async def stop_engine(self) -> Acknowledged:
        return await self._run(calls.stop_engine(self._server))

    async def shut_down(self) -> Acknowledged:
        return await self._run(calls.shut_down(self._server))

    async def save_checkpoint(self, *, timeout: float = 600.0) -> CheckpointResponse:
        return await self._run(calls.save_checkpoint(self._server, timeout))

    async def wait_until_step(self, step: int, timeout: float) -> Status:
        return await self._run(calls.wait_until_step(self._server, step, timeout))

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


def _describe(url: str, token: str | None, timeout_s: float) -> Server:
    parsed = httpx.URL(url)
    if parsed.scheme not in {"http", "https"} or not parsed.host:
        raise BadRequest(f"{url!r} is not the address of a server: write it like http://127.0.0.1:10086", param="url")
    if not timeout_s > 0:
        raise BadRequest(f"timeout must be positive, got {timeout_s}", param="timeout")
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    return Server(url.rstrip("/"), headers, timeout_s)


def _default_client_id() -> str:
    """Host and process, in the letters that the server takes."""
    return re.sub(r"[^\w.:/@+-]", "-", f"{socket.gethostname()}-{os.getpid()}", flags=re.ASCII)[:200]


def _abort_reason(error: BaseException) -> str:
    return f"client_error:{type(error).__name__}"[:200]


def _log_failed_abort(episode_id: str, failure: SwarmError) -> None:
    logger.warning("episode %s was not aborted (%s): it ends by its idle timeout", episode_id, failure.message)
