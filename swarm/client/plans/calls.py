"""The calls of the client as plans: the routes of the server, their request bodies and their answers.

Place in the flow: SwarmClient and AsyncSwarmClient do the I/O for these plans, and have no logic of their own. This
module knows nothing of threads or event loops.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from swarm.client.plans.exchange import Call, Pause, Plan, Server, T, dump_any, exchange
from swarm.errors import (
    BadRequest,
    EngineFailure,
    EngineNotReady,
    Forbidden,
    IllegalTransition,
    TrainingComplete,
    Unavailable,
)
from swarm.job import TrainJob, build_job
from swarm.schemas import (
    API_PREFIX,
    Acknowledged,
    AgreeRequest,
    AgreeResponse,
    AuditPage,
    AuditView,
    BatchPolicies,
    ChangeJobRequest,
    CheckpointResponse,
    ClaimedEvaluation,
    ClaimEvaluationRequest,
    EndEvaluationRequest,
    EngineState,
    EvaluationPage,
    EvaluationView,
    EventPage,
    EventView,
    JobUsage,
    JobView,
    LaunchPage,
    LaunchRequest,
    LaunchView,
    LeaseRequest,
    LeaseView,
    LoadRequest,
    MetricPointView,
    MetricsHistory,
    RecordEvaluationRequest,
    RenewEvaluationRequest,
    StartEngineRequest,
    Status,
    SyncJobRequest,
    TaskCount,
    TaskCounts,
    UpdateBatchPolicyRequest,
)
from swarm.spelling import UNKNOWN
from swarm.types import EpisodeType

logger = logging.getLogger(__name__)

POLL_S = 0.25
PAGE = 1000
# Writing or loading weights can take minutes on a slow disk.
SLOW_CALL_S = 600.0

_SERVING = frozenset(
    {
        EngineState.ROLLING,
        EngineState.DRAINING,
        EngineState.TRAINING,
        EngineState.EXPORTING,
        EngineState.COMPLETE,
    }
)


def status(server: Server) -> Plan[Status]:
    return exchange(server, Call("GET", f"{API_PREFIX}/status"), Status)


def job(server: Server) -> Plan[JobView]:
    return exchange(server, Call("GET", f"{API_PREFIX}/job"), JobView)


def change_job(
    server: Server, settings: Mapping[str, Any], at_step: int | None, expected_revision: int | None
) -> Plan[JobView]:
    """Change the running job. The call names the expected revision, so that it can be repeated safely."""
    if expected_revision is None:
        expected_revision = (yield from job(server)).revision
    body = checked(
        lambda: ChangeJobRequest(settings=dict(settings), at_step=at_step, expected_revision=expected_revision)
    )
    return (yield from exchange(server, Call("PATCH", f"{API_PREFIX}/job", body), JobView))


def task_counts(server: Server) -> Plan[list[TaskCount]]:
    counts = yield from exchange(server, Call("GET", f"{API_PREFIX}/tasks"), TaskCounts)
    return counts.tasks


def usage(server: Server, episode_type: EpisodeType | str) -> Plan[JobUsage]:
    return exchange(server, Call("GET", f"{API_PREFIX}/usage", query={"episode_type": str(episode_type)}), JobUsage)


def metrics(server: Server, after_step: int) -> Plan[list[MetricPointView]]:
    """Read the metrics page by page, until a page is empty."""
    points: list[MetricPointView] = []
    while page := (yield from exchange(server, _beyond("metrics", points, after_step), MetricsHistory)).points:
        points.extend(page)
    return points


def claim_evaluation(server: Server, client_id: str, lease_s: float, wait_s: float) -> Plan[ClaimedEvaluation]:
    """Claim the evaluation that is due. A repeated call claims the same one again."""
    body = checked(lambda: ClaimEvaluationRequest(client_id=client_id, lease_s=lease_s, wait_s=wait_s))
    return exchange(server, Call("POST", f"{API_PREFIX}/evaluations/claim", body, answer_s=wait_s), ClaimedEvaluation)


def renew_evaluation(server: Server, client_id: str, step: int) -> Plan[EvaluationView]:
    body = checked(lambda: RenewEvaluationRequest(client_id=client_id, step=step))
    return exchange(server, Call("POST", f"{API_PREFIX}/evaluations/heartbeat", body), EvaluationView)


def end_evaluation(
    server: Server, client_id: str, step: int, episode_ids: Sequence[str], failures: int, reason: str | None
) -> Plan[EvaluationView]:
    body = checked(
        lambda: EndEvaluationRequest(
            client_id=client_id, step=step, episode_ids=list(episode_ids), failures=failures, reason=reason
        )
    )
    return exchange(server, Call("POST", f"{API_PREFIX}/evaluations/end", body), EvaluationView)


def record_evaluation(
    server: Server, client_id: str, step: int, episode_ids: Sequence[str], failures: int
) -> Plan[EvaluationView]:
    body = checked(
        lambda: RecordEvaluationRequest(
            client_id=client_id, step=step, episode_ids=list(episode_ids), failures=failures
        )
    )
    return exchange(server, Call("POST", f"{API_PREFIX}/evaluations/record", body), EvaluationView)


def evaluations(server: Server, after_step: int) -> Plan[list[EvaluationView]]:
    """Read the evaluations page by page, until a page is empty. A page has all evaluations of a step."""
    found: list[EvaluationView] = []
    while page := (yield from exchange(server, _beyond("evaluations", found, after_step), EvaluationPage)).evaluations:
        found.extend(page)
    return found


def past_events(server: Server, after_id: int) -> Plan[list[EventView]]:
    events: list[EventView] = []
    while True:
        call = _page_of("events", events[-1].event_id if events else after_id)
        page = yield from exchange(server, call, EventPage)
        events.extend(page.events)
        if len(page.events) < PAGE:
            return events


def audit(server: Server, after_id: int) -> Plan[list[AuditView]]:
    """Read the audit log page by page, until a page is not full.

    Reading the log adds an entry to it, so to wait for an empty page would never end.
    """
    entries: list[AuditView] = []
    while True:
        call = _page_of("audit", entries[-1].audit_id if entries else after_id)
        page = yield from exchange(server, call, AuditPage)
        entries.extend(page.entries)
        if len(page.entries) < PAGE:
            return entries


def sync_and_start(
    server: Server,
    train_job: BaseModel | Mapping[str, Any],
    force_restart: bool,
    boot_timeout_s: float,
    resume: Literal["run", "weights"] = "run",
) -> Plan[Status]:
    if resume not in {"run", "weights"}:
        raise BadRequest(f"resume: must be 'run' or 'weights' (got {resume!r})", param="resume")
    if force_restart and resume == "weights":
        raise BadRequest(
            "force_restart starts from the base weights and resume='weights' from the present ones: leave one out",
            param="resume",
        )
    if force_restart:
        yield from stop_engine(server)
    put = Call("PUT", f"{API_PREFIX}/job", SyncJobRequest(job=dump_any(train_job)))
    try:
        try:
            yield from exchange(server, put, JobView)
        except IllegalTransition:
            if resume != "weights":
                raise
            yield from stop_engine(server)
            yield from exchange(server, put, JobView)
    except Forbidden as refusal:
        return (yield from _join(server, train_job, refusal, boot_timeout_s))
    present = yield from status(server)
    if present.state in {EngineState.OFFLINE, EngineState.FAILED}:
        how = "weights" if resume == "weights" else not force_restart
        start = Call("POST", f"{API_PREFIX}/engine/start", StartEngineRequest(resume=how), repeatable=False)
        # The server refuses if another client has started the same job meanwhile, which serves as well.
        with suppress(IllegalTransition):
            yield from exchange(server, start, Acknowledged)
    served = yield from _wait_for(server, "the engine to serve", boot_timeout_s, lambda now: now.state in _SERVING)
    if served.state is EngineState.COMPLETE:
        logger.warning("%s/%s: %s", served.project_name, served.experiment_name, served.reason)
    return served


def launch(server: Server, key: str, train_job: BaseModel | Mapping[str, Any]) -> Plan[LaunchView]:
    """Start a job as a new run. The key makes the call safe to repeat."""
    body = checked(lambda: LaunchRequest(key=key, job=dump_any(train_job)))
    return exchange(server, Call("POST", f"{API_PREFIX}/launch", body), LaunchView)


def find_launch(server: Server, key: str | None) -> Plan[LaunchView | None]:
    query = {} if key is None else {"key": key}
    page = yield from exchange(server, Call("GET", f"{API_PREFIX}/launches", query=query), LaunchPage)
    return page.launches[0] if page.launches else None


def take_lease(server: Server, wanted: LeaseRequest) -> Plan[LeaseView]:
    return exchange(server, Call("PUT", f"{API_PREFIX}/lease", wanted), LeaseView)


def release_lease(server: Server) -> Plan[Acknowledged]:
    return exchange(server, Call("DELETE", f"{API_PREFIX}/lease"), Acknowledged)


def stop_engine(server: Server) -> Plan[Acknowledged]:
    return exchange(server, Call("POST", f"{API_PREFIX}/engine/stop", answer_s=60.0), Acknowledged)


def shut_down(server: Server) -> Plan[Acknowledged]:
    return exchange(server, Call("POST", f"{API_PREFIX}/shutdown", repeatable=False), Acknowledged)


def save_checkpoint(server: Server, timeout_s: float) -> Plan[CheckpointResponse]:
    call = Call("POST", f"{API_PREFIX}/engine/checkpoint", repeatable=False, answer_s=timeout_s)
    return exchange(server, call, CheckpointResponse)


def load_checkpoint(server: Server, step: int, timeout_s: float) -> Plan[Acknowledged]:
    body = checked(lambda: LoadRequest(step=step))
    call = Call("POST", f"{API_PREFIX}/engine/load", body, repeatable=False, answer_s=timeout_s)
    return exchange(server, call, Acknowledged)


def batch_policy(server: Server) -> Plan[BatchPolicies]:
    return exchange(server, Call("GET", f"{API_PREFIX}/batch/policy"), BatchPolicies)


def update_batch_policy(server: Server, settings: Mapping[str, Any]) -> Plan[BatchPolicies]:
    if not settings:
        raise BadRequest("no setting was given: give at least one, such as batch_size=32")
    body = checked(lambda: UpdateBatchPolicyRequest(**settings))
    return exchange(server, Call("PATCH", f"{API_PREFIX}/batch/policy", body), BatchPolicies)


def agree_to_train(server: Server, client_id: str) -> Plan[AgreeResponse]:
    body = checked(lambda: AgreeRequest(client_id=client_id))
    return exchange(server, Call("POST", f"{API_PREFIX}/batch/agree", body), AgreeResponse)


def wait_until_step(server: Server, step: int, timeout_s: float) -> Plan[Status]:
    return _wait_for(server, f"step {step}", timeout_s, lambda now: now.step >= step)


def _page_of(records: str, after_id: int) -> Call:
    return Call("GET", f"{API_PREFIX}/{records}", query={"after_id": after_id, "limit": PAGE})


def _beyond(records: str, known: Sequence[MetricPointView | EvaluationView], after_step: int) -> Call:
    """Return the call for the page after the records that are `known`."""
    return Call("GET", f"{API_PREFIX}/{records}", query={"after_step": known[-1].step if known else after_step})


def _join(
    server: Server, train_job: BaseModel | Mapping[str, Any], refusal: Forbidden, boot_timeout_s: float
) -> Plan[Status]:
    """Wait until the server serves the job, for a client whose token cannot set it.

    Raises `refusal` if the server has another job.
    """
    known = yield from job(server)
    own = build_job(train_job.model_dump() if isinstance(train_job, TrainJob) else dump_any(train_job))
    if known.resolved != own.resolve().model_dump(mode="json"):
        raise refusal
    return (
        yield from _wait_for(
            server,
            "the engine to serve",
            boot_timeout_s,
            lambda now: now.state in _SERVING,
            leaves=frozenset({EngineState.FAILED}),
        )
    )


def _wait_for(
    server: Server,
    what: str,
    timeout_s: float,
    is_reached: Callable[[Status], bool],
    leaves: Collection[EngineState] = (EngineState.FAILED, EngineState.OFFLINE),
) -> Plan[Status]:
    """Poll the status until `is_reached`, and return it. A state in `leaves` ends the wait with an error."""
    deadline = time.monotonic() + timeout_s
    while True:
        present = yield from status(server)
        if is_reached(present):
            return present
        if present.state is EngineState.FAILED and present.state in leaves:
            raise EngineFailure(f"the engine failed: {present.reason or 'see the log of the server'}")
        if present.state is EngineState.COMPLETE:
            raise TrainingComplete(f"the training ended before {what}: {present.reason}")
        if present.state in leaves:
            raise EngineNotReady(f"the engine is {present.state} while waiting for {what}: start it again")
        if time.monotonic() >= deadline:
            raise Unavailable(
                f"waited {timeout_s:g} s for {what}: the engine is {present.state} at step {present.step}; wait longer"
                " with a larger timeout"
            )
        yield Pause(POLL_S)


def checked(build: Callable[[], T]) -> T:
    """Return the request body that `build` makes. Raises BadRequest, which names the first wrong field."""
    try:
        body = build()
        if isinstance(body, BaseModel):
            body.model_dump_json()
        return body
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        got = "" if first["type"] == UNKNOWN else f" (got {first['input']!r})"
        raise BadRequest(f"{where}: {first['msg']}{got}", param=where) from error
    except ValueError as error:
        raise BadRequest(f"cannot be sent as JSON: {error}") from error
