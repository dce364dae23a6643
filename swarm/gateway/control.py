"""Control routes: status, job, engine, metrics. Thin: parse, call the server, render.

Place in the flow: HTTP to `Control`, the server's calls handed in by server.py. It holds no state.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from swarm.config import TrainJob
from swarm.engine.state import EngineLifecycle
from swarm.ledger import Ledger
from swarm.schemas import (
    API_PREFIX,
    Acknowledged,
    CheckpointResponse,
    EngineState,
    JobView,
    MetricPointView,
    MetricsHistory,
    Ready,
    StartEngineRequest,
    Status,
    SyncJobRequest,
)

NOT_READY = frozenset({EngineState.BOOTING, EngineState.FAILED})


@dataclass(frozen=True, slots=True)
class Control:
    """What the server can be told to do."""

    status: Callable[[], Awaitable[Status]]
    job: Callable[[], TrainJob | None]
    sync_job: Callable[[dict[str, Any]], Awaitable[TrainJob]]
    start: Callable[[bool], Awaitable[None]]
    stop: Callable[[], Awaitable[None]]
    checkpoint: Callable[[], Awaitable[CheckpointResponse]]
    load: Callable[[int], Awaitable[None]]
    shutdown: Callable[[], None]


def control_router(control: Control, lifecycle: EngineLifecycle, ledger: Ledger) -> APIRouter:  # noqa: C901 - one closure per route
    router = APIRouter(prefix=API_PREFIX, tags=["control"])

    def acknowledged() -> Acknowledged:
        return Acknowledged(state=lifecycle.state)

    def job_view(job: TrainJob | None) -> JobView:
        if job is None:
            return JobView(job=None, resolved=None)
        return JobView(
            job=job.model_dump(mode="json", exclude_defaults=True), resolved=job.resolve().model_dump(mode="json")
        )

    @router.get("/status")
    async def get_status() -> Status:
        return await control.status()

    @router.get("/job")
    async def get_job() -> JobView:
        return job_view(control.job())

    @router.put("/job")
    async def put_job(request: SyncJobRequest) -> JobView:
        return job_view(await control.sync_job(request.job))

    @router.post("/engine/start", status_code=202)
    async def start_engine(request: StartEngineRequest | None = None) -> Acknowledged:
        await control.start(request.resume if request else True)
        return acknowledged()

    @router.post("/engine/stop")
    async def stop_engine() -> Acknowledged:
        await control.stop()
        return acknowledged()

    @router.post("/engine/checkpoint")
    async def save_checkpoint() -> CheckpointResponse:
        return await control.checkpoint()

    @router.post("/shutdown", status_code=202)
    async def shut_down() -> Acknowledged:
        """Stop the engine, then end the server process."""
        control.shutdown()
        return acknowledged()

    @router.get("/metrics")
    async def get_metrics(
        after_step: Annotated[int, Query(ge=0)] = 0, limit: Annotated[int, Query(ge=1, le=10_000)] = 1000
    ) -> MetricsHistory:
        rows = await ledger.metrics(after_step, limit)
        return MetricsHistory(
            points=[MetricPointView(step=row.step, at=row.at, metrics=dict(row.metrics)) for row in rows]
        )

    return router


def health_router(lifecycle: EngineLifecycle) -> APIRouter:
    router = APIRouter(tags=["health"])

    @router.get("/health")
    async def health() -> dict[str, str]:
        """The process lives and answers."""
        return {"status": "ok"}

    @router.get("/ready")
    async def ready(response: Response) -> Ready:
        """200 when the next command can be taken: a model is served, or a job is awaited. 503 otherwise."""
        is_ready = lifecycle.state not in NOT_READY
        if not is_ready:
            response.status_code = 503
        return Ready(ready=is_ready, state=lifecycle.state, reason=lifecycle.reason)

    return router
