"""Control routes: status, job, engine, batch policy, metrics, batches, audit. Thin: parse, call the server, render.

Place in the flow: HTTP to `Control`, the server's calls handed in by server/commands.py. It holds no state. Who may
call which route is said by the router that it is added to.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

from fastapi import APIRouter, Query, Response

from swarm.errors import EngineNotReady
from swarm.gateway.control.views import view_job_usage
from swarm.gateway.http.openapi import errors
from swarm.gateway.http.query_strings import AuditQuery, BatchQuery, MetricsQuery, UsageQuery
from swarm.ledger import Ledger
from swarm.rollout.completion import ModelService
from swarm.run.evaluations import Evaluations
from swarm.run.lifecycle import EngineLifecycle
from swarm.schemas import (
    API_PREFIX,
    Acknowledged,
    AuditPage,
    BatchPage,
    BatchPolicies,
    ChangeJobRequest,
    CheckpointResponse,
    EngineState,
    HeldTasks,
    JobUsage,
    JobView,
    LaunchView,
    LeaseRequest,
    LeaseView,
    LoadRequest,
    MetricsHistory,
    Ready,
    Resume,
    StartEngineRequest,
    Status,
    SyncJobRequest,
    UpdateBatchPolicyRequest,
)

NOT_READY = frozenset({EngineState.BOOTING, EngineState.FAILED})

Served = Callable[[], ModelService | None]
"""The model being served, or None while the engine is off."""


class Lease(Protocol):
    """The sole use of the server by one study."""

    async def take(self, wanted: LeaseRequest) -> LeaseView: ...

    async def release(self) -> None: ...

    def check(self, fence: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Control:
    """What the server can be told to do."""

    status: Callable[[], Awaitable[Status]]
    job: Callable[[], JobView]
    sync_job: Callable[[dict[str, Any]], Awaitable[JobView]]
    change_job: Callable[[ChangeJobRequest], Awaitable[JobView]]
    start: Callable[[Resume], Awaitable[None]]
    launch: Callable[[str, dict[str, Any]], Awaitable[LaunchView]]
    launches: Callable[[str | None, int], Awaitable[list[LaunchView]]]
    lease: Lease
    stop: Callable[[], Awaitable[None]]
    checkpoint: Callable[[], Awaitable[CheckpointResponse]]
    load: Callable[[int], Awaitable[None]]
    evaluations: Callable[[], Evaluations]
    shutdown: Callable[[], None]


def require_service(served: Served) -> ModelService:
    """Raises EngineNotReady while no engine runs or boots."""
    service = served()
    if service is None:
        raise EngineNotReady(
            "no engine is running: a client sends a job and starts it (auto_sync_train_config_and_start_engine), or"
            " `swarm start --job job.yaml` does",
            retry_after_s=2,
        )
    return service


def add_status_routes(router: APIRouter, control: Control, served: Served, ledger: Ledger) -> None:
    """What everybody with a token may know."""

    @router.get("/status", summary="One snapshot of the server", responses=errors(507))
    async def get_status() -> Status:
        """State, step, weights, how full the next batch is, clients, the running episodes that were silent longest,
        warnings about clients, what was not trained and why, the last step's metrics."""
        return await control.status()

    @router.get("/job", summary="The job, as given and with every default resolved")
    async def get_job() -> JobView:
        """While an engine runs also what was changed since, and what holds for the batch that is being collected."""
        return control.job()

    @router.get("/batch/policy", summary="When a batch is complete and what it may hold", responses=errors(503))
    async def get_policy() -> BatchPolicies:
        """The policy of the batch being filled, and the next one if that differs. 503 while no engine runs."""
        return require_service(served).episodes.policies()

    @router.get("/tasks", summary="The tasks that the present job holds episodes of", responses=errors(507))
    async def get_tasks() -> HeldTasks:
        """How many groups of each task are trained or about to be, and how many of its episodes wait for a batch: what
        a client that was started again need not do once more."""
        return HeldTasks.model_validate({"tasks": await ledger.held_tasks()}, from_attributes=True)

    @router.get("/usage", summary="What the episodes of the present job have spent", responses=errors(507))
    async def get_usage(query: Annotated[UsageQuery, Query()]) -> JobUsage:
        """Calls, tokens, seconds and sampling settings of those that are over, in all."""
        return view_job_usage(query.episode_type, await ledger.job_use(query.episode_type))


def add_history_routes(router: APIRouter, ledger: Ledger) -> None:
    """What is on record, for those who read."""

    @router.get("/metrics", summary="Metrics of the finished steps, oldest first", responses=errors(507))
    async def get_metrics(query: Annotated[MetricsQuery, Query()]) -> MetricsHistory:
        rows = await ledger.metrics(query.after_step, query.limit)
        return MetricsHistory.model_validate({"points": rows}, from_attributes=True)

    @router.get("/batches", summary="Batches of the present job, newest first", responses=errors(507))
    async def get_batches(query: Annotated[BatchQuery, Query()]) -> BatchPage:
        return BatchPage.model_validate({"batches": await ledger.batches(query.limit)}, from_attributes=True)


def add_job_routes(router: APIRouter, control: Control) -> None:
    """What is trained, and by which settings."""

    @router.put("/job", summary="Set the job", responses=errors(409))
    async def put_job(body: SyncJobRequest) -> JobView:
        """Taken while OFFLINE or FAILED; while another job runs 409. The same job again changes nothing; with more
        `total_steps` it goes on, from COMPLETE as well."""
        return await control.sync_job(body.job)

    @router.patch("/job", summary="Change the job that runs", responses=errors(409, 503, 507))
    async def patch_job(body: ChangeJobRequest) -> JobView:
        """Other settings from a step on, durable. The answer says from which; what cannot change is refused by name,
        another `expected_revision` than the present one with 409."""
        return await control.change_job(body)


def add_command_routes(
    router: APIRouter, control: Control, served: Served, lifecycle: EngineLifecycle, ledger: Ledger
) -> None:
    """What changes the training, and who did."""

    def acknowledged() -> Acknowledged:
        return Acknowledged(state=lifecycle.state)

    @router.post("/engine/start", status_code=202, summary="Boot the engine", responses=errors(409, 507))
    async def start_engine(body: StartEngineRequest | None = None) -> Acknowledged:
        """Answers at once; the status says when it is ROLLING (COMPLETE if all its steps are done), or FAILED and why.
        With `resume` (the default) the same job goes on where it was; with "weights" another job of the same model
        begins a new run from the weights of the run before."""
        await control.start(body.resume if body else True)
        return acknowledged()

    @router.post("/engine/stop", summary="Stop the engine", responses=errors(507))
    async def stop_engine() -> Acknowledged:
        """Abort what runs and free the model; the job stays known. Idempotent."""
        await control.stop()
        return acknowledged()

    @router.post("/engine/checkpoint", summary="Save a checkpoint now", responses=errors(409, 503))
    async def save_checkpoint() -> CheckpointResponse:
        """In Hugging Face layout, and kept. Answers once it is written."""
        return await control.checkpoint()

    @router.post("/engine/load", summary="Go back to an earlier step of this run", responses=errors(404, 409, 503))
    async def load_checkpoint(body: LoadRequest) -> Acknowledged:
        """What was trained since counts as rewound; running train episodes are aborted. Answers once it serves."""
        await control.load(body.step)
        return acknowledged()

    @router.post("/shutdown", status_code=202, summary="Stop the engine, then end the server process")
    async def shut_down() -> Acknowledged:
        control.shutdown()
        return acknowledged()

    @router.patch("/batch/policy", summary="Change the policy from the next batch on", responses=errors(503, 507))
    async def update_policy(body: UpdateBatchPolicyRequest) -> BatchPolicies:
        """What is left out stays. Durable; takes effect when the present batch is sealed."""
        return await require_service(served).episodes.propose_policy(body)

    @router.get("/audit", summary="Who called for a commander's rights, oldest first", responses=errors(507))
    async def get_audit(query: Annotated[AuditQuery, Query()]) -> AuditPage:
        """Every such call, allowed or refused. Reading this log is one of them."""
        entries = await ledger.audit(query.after_id, query.limit)
        return AuditPage.model_validate({"entries": entries}, from_attributes=True)


def health_router(lifecycle: EngineLifecycle) -> APIRouter:
    """For supervisors and load balancers; says nothing that is not public."""
    router = APIRouter(tags=["health"])

    @router.get("/", summary="What this is, and where everything else is")
    async def index() -> dict[str, str]:
        return {
            "service": "swarm",
            "status": f"{API_PREFIX}/status",
            "models": "/v1/models",
            "metrics": "/metrics",
            "docs": "/docs",
            "openapi": "/openapi.json",
        }

    @router.get("/health", summary="The process lives and answers")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @router.get("/ready", summary="Whether the next command can be taken", responses={503: {"model": Ready}})
    async def ready(response: Response) -> Ready:
        """200 when a model is served or a job is awaited, 503 while it boots or has failed."""
        is_ready = lifecycle.state not in NOT_READY
        if not is_ready:
            response.status_code = 503
        return Ready(ready=is_ready, state=lifecycle.state, reason=lifecycle.reason)

    return router
