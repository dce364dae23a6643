"""Control routes: status, job, engine, batch policy, metrics, batches and audit log."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from swarm.gateway.control.views import view_job_usage
from swarm.gateway.http.openapi import errors
from swarm.gateway.http.query_strings import AuditQuery, BatchQuery, MetricsQuery, UsageQuery
from swarm.gateway.served import Served
from swarm.ledger import Ledger
from swarm.run.evaluations import Evaluations
from swarm.run.lease import ServerLease
from swarm.run.lifecycle import EngineLifecycle
from swarm.run.lost_episodes import LostEpisodes
from swarm.schemas import (
    API_PREFIX,
    Acknowledged,
    AddDemonstrationsRequest,
    AuditPage,
    BatchPage,
    BatchPolicies,
    ChangeJobRequest,
    CheckpointResponse,
    DemonstrationsView,
    EngineState,
    JobUsage,
    JobView,
    LaunchView,
    LoadRequest,
    MetricsHistory,
    Ready,
    Resume,
    StartEngineRequest,
    Status,
    SyncJobRequest,
    TaskCounts,
    UpdateBatchPolicyRequest,
)

NOT_READY = frozenset({EngineState.BOOTING, EngineState.FAILED})


@dataclass(frozen=True, slots=True)
class Control:
    """The commands and queries of the server, as callables."""

    status: Callable[[], Awaitable[Status]]
    job: Callable[[], JobView]
    sync_job: Callable[[dict[str, Any]], Awaitable[JobView]]
    change_job: Callable[[ChangeJobRequest], Awaitable[JobView]]
    add_demonstrations: Callable[[bytes], Awaitable[DemonstrationsView]]
    start: Callable[[Resume], Awaitable[None]]
    launch: Callable[[str, dict[str, Any]], Awaitable[LaunchView]]
    launches: Callable[[str | None, int], Awaitable[list[LaunchView]]]
    lease: ServerLease
    lost: LostEpisodes
    stop: Callable[[], Awaitable[None]]
    checkpoint: Callable[[], Awaitable[CheckpointResponse]]
    load: Callable[[int, bool], Awaitable[None]]
    evaluations: Callable[[], Evaluations]
    shutdown: Callable[[], None]


def add_status_routes(router: APIRouter, control: Control, served: Served, ledger: Ledger) -> None:
    """Add the routes that every role may read."""

    @router.get("/status", summary="One snapshot of the server", responses=errors(507))
    async def get_status() -> Status:
        """Return a snapshot of the server.

        It shows state, step, weights, progress of the next batch, clients and warnings about them. It lists the running
        episodes that were silent longest, the reasons of untrained episodes, and the metrics of the last step.
        """
        return await control.status()

    @router.get("/job", summary="The job, as given and with every default resolved")
    async def get_job() -> JobView:
        """Return the job. While an engine runs, also its changes and the settings of the batch being collected."""
        return control.job()

    @router.get("/batch/policy", summary="When a batch is complete and what it may contain", responses=errors(503))
    async def get_policy() -> BatchPolicies:
        """Return the policy of the present batch, and of the next one if it differs. 503 while no engine runs."""
        return served.require().episodes.batch.policies()

    @router.get("/tasks", summary="The tasks of the present job that have episodes", responses=errors(507))
    async def get_tasks() -> TaskCounts:
        """Return, for each task, the groups that a batch contains and the ended episodes that wait for a batch.

        A client that was restarted need not run these episodes again.
        """
        return TaskCounts.model_validate({"tasks": await ledger.task_counts()}, from_attributes=True)

    @router.get("/usage", summary="Total usage of the present job's episodes", responses=errors(507))
    async def get_usage(query: Annotated[UsageQuery, Query()]) -> JobUsage:
        """Return the total calls, tokens and seconds of finished episodes, and their sampling settings."""
        return view_job_usage(query.episode_type, await ledger.job_use(query.episode_type))


def add_history_routes(router: APIRouter, ledger: Ledger) -> None:
    """Add the routes that read metrics and batches."""

    @router.get("/metrics", summary="Metrics of the finished steps, oldest first", responses=errors(507))
    async def get_metrics(query: Annotated[MetricsQuery, Query()]) -> MetricsHistory:
        rows = await ledger.trained_batches(query.after_step, query.limit)
        points = [{"step": row.step, "at": row.finished_at, "metrics": row.metrics} for row in rows]
        return MetricsHistory.model_validate({"points": points})

    @router.get("/batches", summary="Batches of the present job, newest first", responses=errors(507))
    async def get_batches(query: Annotated[BatchQuery, Query()]) -> BatchPage:
        return BatchPage.model_validate({"batches": await ledger.batches(query.limit)}, from_attributes=True)


def add_job_routes(router: APIRouter, control: Control) -> None:
    """Add the routes that set and change the job."""

    @router.put("/job", summary="Set the job", responses=errors(409))
    async def put_job(body: SyncJobRequest) -> JobView:
        """Set the job, while the engine is OFFLINE or FAILED.

        While another job runs, the answer is 409. The same job again changes nothing. The same job with more
        `total_steps` continues, also from COMPLETE.
        """
        return await control.sync_job(body.job)

    @router.post("/demonstrations", summary="Upload demonstrations for supervised steps", responses=errors(507))
    async def post_demonstrations(body: AddDemonstrationsRequest) -> DemonstrationsView:
        """Store conversations to train on. A job names them by the digest of the answer.

        The same lines again change nothing. 400 names the first line that is no demonstration.
        """
        return await control.add_demonstrations(body.lines.encode())

    @router.patch("/job", summary="Change the job that runs", responses=errors(409, 503, 507))
    async def patch_job(body: ChangeJobRequest) -> JobView:
        """Change settings of the running job durably, from a step on that the answer names.

        A setting that cannot change is refused by name. If `expected_revision` is not the present revision, the answer
        is 409.
        """
        return await control.change_job(body)


def add_command_routes(
    router: APIRouter, control: Control, served: Served, lifecycle: EngineLifecycle, ledger: Ledger
) -> None:
    """Add the routes that only a commander may call: engine, checkpoints, batch policy, shutdown and audit log."""

    def acknowledged() -> Acknowledged:
        return Acknowledged(state=lifecycle.state)

    @router.post("/engine/start", status_code=202, summary="Boot the engine", responses=errors(409, 507))
    async def start_engine(body: StartEngineRequest | None = None) -> Acknowledged:
        """Boot the engine. The answer comes at once.

        GET status then shows ROLLING (COMPLETE if all steps are done), or FAILED with the reason. With `resume` (the
        default) the same job continues where it stopped. With "weights" another job of the same model begins a new run
        from the weights of the run before.
        """
        await control.start(body.resume if body else True)
        return acknowledged()

    @router.post("/engine/stop", summary="Stop the engine", responses=errors(507))
    async def stop_engine() -> Acknowledged:
        """Abort all running episodes and free the model. The server keeps the job. Idempotent."""
        await control.stop()
        return acknowledged()

    @router.post("/engine/checkpoint", summary="Save a checkpoint now", responses=errors(409, 503))
    async def save_checkpoint() -> CheckpointResponse:
        """Save a checkpoint in Hugging Face format, and keep it. The answer comes once it is written."""
        return await control.checkpoint()

    @router.post("/engine/load", summary="Go back to an earlier step of this run", responses=errors(404, 409, 503))
    async def load_checkpoint(body: LoadRequest) -> Acknowledged:
        """Load the weights of an earlier step. The answer comes once the engine serves them.

        Later batches count as rewound, and running train episodes are aborted.
        """
        await control.load(body.step, body.end)
        return acknowledged()

    @router.post("/shutdown", status_code=202, summary="Stop the engine, then end the server process")
    async def shut_down() -> Acknowledged:
        control.shutdown()
        return acknowledged()

    @router.patch("/batch/policy", summary="Change the policy from the next batch on", responses=errors(503, 507))
    async def update_policy(body: UpdateBatchPolicyRequest) -> BatchPolicies:
        """Change the policy durably, from the next batch on. Settings that the body leaves out stay as they are."""
        return await served.require().episodes.batch.propose_policy(body)

    @router.get("/audit", summary="Calls that need the commander role, oldest first", responses=errors(507))
    async def get_audit(query: Annotated[AuditQuery, Query()]) -> AuditPage:
        """Return the calls that need the commander role, allowed or refused. Reading this log is one of them."""
        entries = await ledger.audit(query.after_id, query.limit)
        return AuditPage.model_validate({"entries": entries}, from_attributes=True)


def health_router(lifecycle: EngineLifecycle) -> APIRouter:
    """Return the router for supervisors and load balancers. Its answers are public, so it needs no token."""
    router = APIRouter(tags=["health"])

    @router.get("/", summary="The name of the service and the paths of its main routes")
    async def index() -> dict[str, str]:
        return {
            "service": "swarm",
            "status": f"{API_PREFIX}/status",
            "models": "/v1/models",
            "metrics": "/metrics",
            "docs": "/docs",
            "openapi": "/openapi.json",
        }

    @router.get("/health", summary="Whether the process is alive")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @router.get("/ready", summary="Whether the server is ready for calls", responses={503: {"model": Ready}})
    async def ready(response: Response) -> Ready:
        """Return 200 while a model is served or a job can be started, 503 while the engine boots or has failed."""
        is_ready = lifecycle.state not in NOT_READY
        if not is_ready:
            response.status_code = 503
        return Ready(ready=is_ready, state=lifecycle.state, reason=lifecycle.reason)

    return router
