"""Every call of the client as a plan: the one place that knows routes, bodies and what they return.

Place in the flow: SwarmClient and AsyncSwarmClient carry these plans out; neither has logic of its own. Knows nothing
of threads or event loops.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import quote

from pydantic import BaseModel, ValidationError

from swarm.client.credentials import Credentials, credentials_of
from swarm.client.exchange import Call, Pause, Plan, Server, T, dump_any, exchange
from swarm.errors import BadRequest, EngineFailure, EngineNotReady, IllegalTransition, Unavailable
from swarm.schemas import (
    API_PREFIX,
    AbortEpisodeRequest,
    Acknowledged,
    BeginEpisodeRequest,
    BeginEpisodeResponse,
    CheckpointResponse,
    EndEpisodeRequest,
    EndEpisodeResponse,
    EngineState,
    EpisodeDetail,
    EpisodeView,
    JobView,
    MetricPointView,
    MetricsHistory,
    StartEngineRequest,
    Status,
    SyncJobRequest,
)
from swarm.types import EpisodeType, Task, WorkflowOutput

POLL_S = 0.25
# The longest the server is asked to hold a begin: proxies in between cut silent connections after a minute.
MAX_HOLD_S = 25.0

_SERVING = frozenset({EngineState.ROLLING, EngineState.DRAINING, EngineState.TRAINING, EngineState.EXPORTING})


def status(server: Server) -> Plan[Status]:
    return exchange(server, Call("GET", f"{API_PREFIX}/status"), Status)


def job(server: Server) -> Plan[JobView]:
    return exchange(server, Call("GET", f"{API_PREFIX}/job"), JobView)


def metrics(server: Server, after_step: int) -> Plan[list[MetricPointView]]:
    """Page through the history until nothing is left."""
    points: list[MetricPointView] = []
    while True:
        last = points[-1].step if points else after_step
        call = Call("GET", f"{API_PREFIX}/metrics", query={"after_step": last})
        page = yield from exchange(server, call, MetricsHistory)
        if not page.points:
            return points
        points.extend(page.points)


def sync_and_start(
    server: Server, train_job: BaseModel | Mapping[str, Any], force_restart: bool, boot_timeout_s: float
) -> Plan[Status]:
    if force_restart:
        yield from stop_engine(server)
    body = SyncJobRequest(job=dump_any(train_job))
    yield from exchange(server, Call("PUT", f"{API_PREFIX}/job", body), JobView)
    present = yield from status(server)
    if present.state in {EngineState.OFFLINE, EngineState.FAILED}:
        start = Call(
            "POST", f"{API_PREFIX}/engine/start", StartEngineRequest(resume=not force_restart), idempotent=False
        )
        # Refused if another client started the same job in the meantime: its boot is as good as ours.
        with suppress(IllegalTransition):
            yield from exchange(server, start, Acknowledged)
    return (yield from _wait_for(server, "the engine to serve", boot_timeout_s, lambda now: now.state in _SERVING))


def stop_engine(server: Server) -> Plan[Acknowledged]:
    return exchange(server, Call("POST", f"{API_PREFIX}/engine/stop", answer_s=60.0), Acknowledged)


def shut_down(server: Server) -> Plan[Acknowledged]:
    return exchange(server, Call("POST", f"{API_PREFIX}/shutdown", idempotent=False), Acknowledged)


def save_checkpoint(server: Server, timeout_s: float) -> Plan[CheckpointResponse]:
    call = Call("POST", f"{API_PREFIX}/engine/checkpoint", idempotent=False, answer_s=timeout_s)
    return exchange(server, call, CheckpointResponse)


def wait_until_step(server: Server, step: int, timeout_s: float) -> Plan[Status]:
    return _wait_for(server, f"step {step}", timeout_s, lambda now: now.step >= step)


def begin_episode(
    server: Server,
    *,
    client_id: str,
    episode_type: EpisodeType | str,
    idle_timeout_s: float,
    task_id: str | None,
    wait_timeout_s: float,
) -> Plan[tuple[str, Credentials]]:
    hold_s = max(0.0, min(MAX_HOLD_S, wait_timeout_s))
    body = _checked(
        lambda: BeginEpisodeRequest(
            episode_type=EpisodeType(episode_type),
            client_id=client_id,
            task_id=task_id,
            idle_timeout_s=idle_timeout_s,
            wait_s=hold_s,
        )
    )
    call = Call(
        "POST",
        f"{API_PREFIX}/episodes/begin",
        body,
        # A begin that got through may have begun an episode whose answer was lost: it must not be sent again.
        idempotent=False,
        patience_s=wait_timeout_s,
        answer_s=hold_s,
    )
    begun = yield from exchange(server, call, BeginEpisodeResponse)
    return begun.episode_id, credentials_of(begun, server.url)


def end_episode(
    server: Server, *, client_id: str, task: Task, episode_id: str, output: WorkflowOutput
) -> Plan[EndEpisodeResponse]:
    body = _checked(
        lambda: EndEpisodeRequest(
            task_id=task.task_id,
            reward=output.reward,
            is_success=output.is_success,
            metadata=dict(output.metadata),
            client_id=client_id,
            idempotency_key=episode_id,
        )
    )
    return exchange(server, Call("POST", _episode_path(episode_id, "/end"), body), EndEpisodeResponse)


def abort_episode(server: Server, episode_id: str, reason: str) -> Plan[EpisodeView]:
    body = _checked(lambda: AbortEpisodeRequest(reason=reason))
    return exchange(server, Call("POST", _episode_path(episode_id, "/abort"), body), EpisodeView)


def heartbeat(server: Server, episode_id: str) -> Plan[EpisodeView]:
    return exchange(server, Call("POST", _episode_path(episode_id, "/heartbeat")), EpisodeView)


def episode(server: Server, episode_id: str) -> Plan[EpisodeDetail]:
    return exchange(server, Call("GET", _episode_path(episode_id)), EpisodeDetail)


def _wait_for(server: Server, what: str, timeout_s: float, is_reached: Callable[[Status], bool]) -> Plan[Status]:
    deadline = time.monotonic() + timeout_s
    while True:
        present = yield from status(server)
        if is_reached(present):
            return present
        if present.state is EngineState.FAILED:
            raise EngineFailure(f"the engine failed: {present.reason or 'see the log of the server'}")
        if present.state is EngineState.OFFLINE:
            raise EngineNotReady(f"the engine is OFFLINE while waiting for {what}: start it again")
        if time.monotonic() >= deadline:
            raise Unavailable(
                f"waited {timeout_s:g} s for {what}: the engine is {present.state} at step {present.step}"
            )
        yield Pause(POLL_S)


def _episode_path(episode_id: str, suffix: str = "") -> str:
    return f"{API_PREFIX}/episodes/{quote(episode_id, safe='')}{suffix}"


def _checked(build: Callable[[], T]) -> T:
    """A request body, or BadRequest naming the first wrong field: nothing malformed is sent."""
    try:
        body = build()
        if isinstance(body, BaseModel):
            body.model_dump_json()
        return body
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise BadRequest(f"{where}: {first['msg']} (got {first['input']!r})", param=where) from error
    except ValueError as error:
        raise BadRequest(f"cannot be sent as JSON: {error}") from error
