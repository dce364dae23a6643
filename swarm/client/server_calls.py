"""The calls of a client that concern the server and its job: status, job, engine, batches, scores and records."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from swarm.client.episode import DEFAULT_WAIT_S
from swarm.client.events import follow_events
from swarm.client.exchange import Answer, Call, Server, checked, dump_any, exchange
from swarm.client.heartbeat import DEFAULT_LEASE_S
from swarm.client.io import Io
from swarm.demonstrations import digest_demonstrations, is_digest, read_demonstration_file
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
    AddDemonstrationsRequest,
    AgreeRequest,
    AgreeResponse,
    AuditPage,
    AuditView,
    BatchPolicies,
    ChangeJobRequest,
    CheckpointResponse,
    ClaimedEvaluation,
    ClaimEvaluationRequest,
    DemonstrationsView,
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


class ServerCalls:
    """The calls to one server that need no episode."""

    def __init__(self, server: Server, client_id: str, io: Io) -> None:
        self._server = server
        self._io = io
        self._client_id = client_id

    @property
    def url(self) -> str:
        return self._server.url

    @property
    def client_id(self) -> str:
        return self._client_id

    async def auto_sync_train_config_and_start_engine(
        self,
        job: BaseModel | Mapping[str, Any],
        force_restart: bool = False,
        *,
        resume: Literal["run", "weights"] = "run",
        boot_timeout: float = 300.0,
    ) -> Status:
        """Send this TrainJob to the server, start the engine, and wait until it serves.

        If the server already runs the same job, the client joins it. A stopped job continues from its newest
        checkpoint. `force_restart` stops the running job and starts this one from the base weights. With
        `resume="weights"`, a changed job replaces the running one as a new run. It starts from the weights that are
        there, with a new optimizer, and its steps count from 0.

        A client whose token has the role rollout cannot set a job. It waits until the server serves this one, and
        raises Forbidden if the server has another job.

        Raises JobInvalid for a job that is not valid, and IllegalTransition while another job runs. Raises
        EngineFailure if the engine does not boot, and Unavailable after `boot_timeout` seconds.
        """
        if resume not in {"run", "weights"}:
            raise BadRequest(f"resume: must be 'run' or 'weights' (got {resume!r})", param="resume")
        if force_restart and resume == "weights":
            raise BadRequest(
                "force_restart starts from the base weights and resume='weights' from the present ones: leave one out",
                param="resume",
            )
        job = dump_any(job)
        given = Path(job["demonstrations"]) if names_file(job) else None
        if force_restart:
            await self.stop_engine()
        try:
            if given is not None:
                # Replaced first: a client that may not upload compares the job with that of the server.
                content = read_demonstration_file(given)
                job = {**job, "demonstrations": digest_demonstrations(content)}
                await self._upload(content)
            put = Call("PUT", f"{API_PREFIX}/job", SyncJobRequest(job=job))
            try:
                await self._exchange(put, JobView)
            except IllegalTransition:
                if resume != "weights":
                    raise
                await self.stop_engine()
                await self._exchange(put, JobView)
        except Forbidden as refusal:
            return await self._join(job, refusal, boot_timeout)
        present = await self.status()
        if present.state in {EngineState.OFFLINE, EngineState.FAILED}:
            how = "weights" if resume == "weights" else not force_restart
            start = Call("POST", f"{API_PREFIX}/engine/start", StartEngineRequest(resume=how), repeatable=False)
            # The server refuses if another client has started the same job meanwhile, which serves as well.
            with suppress(IllegalTransition):
                await self._exchange(start, Acknowledged)
        served = await self._wait_for("the engine to serve", boot_timeout, lambda now: now.state in _SERVING)
        if served.state is EngineState.COMPLETE:
            logger.warning("%s/%s: %s", served.project_name, served.experiment_name, served.reason)
        return served

    async def status(self) -> Status:
        return await self._get("status", Status)

    async def tell(self, receipt: str) -> Status:
        """Bring a receipt of ended episodes to the server, which records what it proves to be lost."""
        self._server.receipt = receipt
        return await self.status()

    async def job(self) -> JobView:
        return await self._get("job", JobView)

    async def change_job(
        self, settings: Mapping[str, Any], *, at_step: int | None = None, expected_revision: int | None = None
    ) -> JobView:
        """Change settings of the running job, from step `at_step` on.

        The default is the first step that can still take them. The last of the returned `changes` names the step. A
        change is durable on return, and is made once however often the call is repeated.

        Raises BadRequest for a setting that cannot change while a job runs. Raises RevisionConflict if another client
        has changed the job since `expected_revision`; without a revision, if one does so during this call.
        """
        # With the revision, the call can be repeated safely.
        revision = (await self.job()).revision if expected_revision is None else expected_revision
        body = checked(lambda: ChangeJobRequest(settings=dict(settings), at_step=at_step, expected_revision=revision))
        return await self._exchange(Call("PATCH", f"{API_PREFIX}/job", body), JobView)

    async def task_counts(self) -> list[TaskCount]:
        """Return the tasks of the current job that have episodes on the server, trained or waiting.

        Each has the number of its groups in batches, and the number of its ended episodes that are in no batch yet. A
        restarted program continues with the other tasks.
        """
        return (await self._get("tasks", TaskCounts)).tasks

    async def usage(self, episode_type: EpisodeType | str = EpisodeType.TRAIN) -> JobUsage:
        """Return the calls and tokens that the ended episodes of this type have used in the current job."""
        return await self._get("usage", JobUsage, episode_type=str(episode_type))

    async def metrics(self, after_step: int = 0) -> list[MetricPointView]:
        """Return the metrics of every finished step after `after_step`, oldest first."""
        points: list[MetricPointView] = []
        while page := (await self._get("metrics", MetricsHistory, after_step=_last_step(points, after_step))).points:
            points.extend(page)
        return points

    async def evaluations(self, after_step: int = -1) -> list[EvaluationView]:
        """Return the evaluations of the current job, in the order of their steps.

        Those in state `done` are its curve of held-out scores. The others are due, running, abandoned or rewound.
        """
        found: list[EvaluationView] = []
        while True:
            # A page has all evaluations of a step.
            page = await self._get("evaluations", EvaluationPage, after_step=_last_step(found, after_step))
            if not page.evaluations:
                return found
            found.extend(page.evaluations)

    async def claim_evaluation(self, *, lease_s: float = DEFAULT_LEASE_S, wait_s: float = 0.0) -> ClaimedEvaluation:
        """Claim the evaluation that is due, so that this client scores it.

        The call waits up to `wait_s` seconds (at most 60) for one. The claim lasts until `lease_s` seconds after its
        last renewal. A repeated call claims the same one again. Use `follow_evaluations`, which claims, renews and ends
        evaluations.
        """
        body = checked(lambda: ClaimEvaluationRequest(client_id=self.client_id, lease_s=lease_s, wait_s=wait_s))
        return await self._post("evaluations/claim", ClaimedEvaluation, body, answer_s=wait_s)

    async def renew_evaluation(self, step: int) -> EvaluationView:
        """Renew the claim on an evaluation. Raises Conflict if this client no longer has it."""
        body = checked(lambda: RenewEvaluationRequest(client_id=self.client_id, step=step))
        return await self._post("evaluations/heartbeat", EvaluationView, body)

    async def end_evaluation(
        self, step: int, episode_uuids: Sequence[str], *, failures: int = 0, reason: str | None = None
    ) -> EvaluationView:
        """End the evaluation of a step with its ended eval episodes, whose recorded rewards are the score.

        The score counts once, however often the call is repeated. Without episodes there is no score, and `reason`
        says why.

        Raises BadRequest for an episode that was sampled with other weights. Raises Conflict if the evaluation is over
        or no longer belongs to this client.
        """
        body = checked(
            lambda: EndEvaluationRequest(
                client_id=self.client_id, step=step, episode_ids=list(episode_uuids), failures=failures, reason=reason
            )
        )
        return await self._post("evaluations/end", EvaluationView, body)

    async def record_evaluation(self, step: int, episode_uuids: Sequence[str], *, failures: int = 0) -> EvaluationView:
        """Record a score of the served weights, those of `step`, that was not due: the rewards of these eval episodes.

        The score counts once, however often the call is repeated. `failures` counts attempts without a score.

        Raises BadRequest for an episode that was sampled with other weights. Raises Conflict if other weights are
        served by now, or if these have an evaluation.
        """
        body = checked(
            lambda: RecordEvaluationRequest(
                client_id=self.client_id, step=step, episode_ids=list(episode_uuids), failures=failures
            )
        )
        return await self._post("evaluations/record", EvaluationView, body)

    async def batch_policy(self) -> BatchPolicies:
        """Return the policy of the batch that is being filled, and that of the next batch if it differs."""
        return await self._get("batch/policy", BatchPolicies)

    async def update_batch_policy(self, **settings: Any) -> BatchPolicies:
        """Change settings of schemas.UpdateBatchPolicyRequest from the next batch on.

        Raises BadRequest, which names the setting that is wrong.
        """
        if not settings:
            raise BadRequest("no setting was given: give at least one, such as batch_size=32")
        body = checked(lambda: UpdateBatchPolicyRequest(**settings))
        return await self._exchange(Call("PATCH", f"{API_PREFIX}/batch/policy", body), BatchPolicies)

    async def set_mixture(self, mixture: Mapping[str, float]) -> BatchPolicies:
        """Set the share of each data source from the next batch on.

        The shares sum to 1. An empty mapping removes the mixture.
        """
        return await self.update_batch_policy(mixture=dict(mixture))

    async def agree_to_train(self) -> AgreeResponse:
        """Declare that this client has sent all its episodes for the current batch.

        The stop rules `any_client_agrees` and `all_clients_agree` use it. It is valid until that batch is closed.
        """
        return await self._post("batch/agree", AgreeResponse, checked(lambda: AgreeRequest(client_id=self.client_id)))

    async def launch(self, key: str, job: BaseModel | Mapping[str, Any]) -> LaunchView:
        """Start this TrainJob as a new run from the base weights, and return without waiting for it.

        A second call with the same key starts nothing, and returns the state of that run. Raises JobInvalid for a job
        that is not valid, and LaunchConflict while another run is active.
        """
        job = dump_any(job)
        if names_file(job):
            job = {**job, "demonstrations": (await self.add_demonstrations(job["demonstrations"])).digest}
        return await self._post("launch", LaunchView, checked(lambda: LaunchRequest(key=key, job=job)))

    async def add_demonstrations(self, path: str | Path) -> DemonstrationsView:
        """Upload a file of demonstrations: JSON lines, or Parquet. The digest of the answer names them in a job.

        Raises BadRequest, which names the first line that is no demonstration.
        """
        return await self._upload(read_demonstration_file(Path(path)))

    async def _upload(self, content: bytes) -> DemonstrationsView:
        body = checked(lambda: AddDemonstrationsRequest(lines=content.decode()))
        return await self._post("demonstrations", DemonstrationsView, body)

    async def find_launch(self, key: str | None = None) -> LaunchView | None:
        """Return the state of the run that was launched with `key`, by default of the newest one.

        The result is None if this server never launched it.
        """
        query = {} if key is None else {"key": key}
        page = await self._get("launches", LaunchPage, **query)
        return page.launches[0] if page.launches else None

    async def take_lease(self, wanted: LeaseRequest) -> LeaseView:
        """Take or renew the lease that reserves the server for one study.

        Raises ServerLeased while another study has the lease.
        """
        return await self._exchange(Call("PUT", f"{API_PREFIX}/lease", wanted), LeaseView)

    async def release_lease(self) -> Acknowledged:
        """Release the lease on the server. Idempotent."""
        return await self._exchange(Call("DELETE", f"{API_PREFIX}/lease"), Acknowledged)

    async def stop_engine(self) -> Acknowledged:
        """Abort the running episodes and unload the model; the server keeps the job. Idempotent."""
        return await self._post("engine/stop", Acknowledged, answer_s=60.0)

    async def shut_down(self) -> Acknowledged:
        """Stop the engine, then the server process itself."""
        return await self._post("shutdown", Acknowledged, repeatable=False)

    async def save_checkpoint(self, *, timeout: float = SLOW_CALL_S) -> CheckpointResponse:
        """Write weights, optimizer and step to the server's disk.

        Raises IllegalTransition unless the engine is ROLLING.
        """
        return await self._post("engine/checkpoint", CheckpointResponse, repeatable=False, answer_s=timeout)

    async def load_checkpoint(self, step: int, *, end: bool = False, timeout: float = SLOW_CALL_S) -> Acknowledged:
        """Return to the weights of an earlier `step`; running train episodes are aborted, later batches are rewound.

        With `end` the job ends with that step, and nothing more is trained.

        Raises NotFound for a step that the run has not reached, IllegalTransition unless the engine is ROLLING, and
        CheckpointError if a checkpoint cannot be read or moved.
        """
        body = checked(lambda: LoadRequest(step=step, end=end))
        return await self._post("engine/load", Acknowledged, body, repeatable=False, answer_s=timeout)

    async def wait_until_step(self, step: int, timeout: float) -> Status:
        """Wait until `step` steps are done.

        Raises EngineFailure or EngineNotReady if the engine fails or stops, TrainingComplete if the job ends earlier,
        and Unavailable after `timeout` seconds.
        """
        return await self._wait_for(f"step {step}", timeout, lambda now: now.step >= step)

    async def past_events(self, after_id: int = 0) -> list[EventView]:
        """Return every recorded event after `after_id`, oldest first."""
        events: list[EventView] = []
        while True:
            after_id = events[-1].event_id if events else after_id
            page = (await self._get("events", EventPage, after_id=after_id, limit=PAGE)).events
            events.extend(page)
            if len(page) < PAGE:
                return events

    def events(self, after_id: int = 0, *, patience: float = DEFAULT_WAIT_S) -> AsyncGenerator[EventView]:
        """Yield every event after `after_id`, then each new event as it happens, without end.

        No event is lost or repeated when the server restarts. Raises ServerUnreachable if the server does not answer
        for `patience` seconds.
        """
        return follow_events(self._io, self._server, after_id, patience)

    async def audit(self, after_id: int = 0) -> list[AuditView]:
        """Return every recorded control call after `after_id`, allowed or refused, oldest first.

        Needs a token with the role commander.
        """
        entries: list[AuditView] = []
        while True:
            after_id = entries[-1].audit_id if entries else after_id
            page = (await self._get("audit", AuditPage, after_id=after_id, limit=PAGE)).entries
            entries.extend(page)
            # An empty page never comes, because reading the log adds an entry to it.
            if len(page) < PAGE:
                return entries

    async def _exchange(self, call: Call, answer: type[Answer]) -> Answer:
        return await exchange(self._io, self._server, call, answer)

    async def _get(self, path: str, answer: type[Answer], **query: str | int) -> Answer:
        return await self._exchange(Call("GET", f"{API_PREFIX}/{path}", query=query), answer)

    async def _post(
        self,
        path: str,
        answer: type[Answer],
        body: BaseModel | None = None,
        *,
        repeatable: bool = True,
        patience_s: float | None = None,
        answer_s: float = 0.0,
    ) -> Answer:
        call = Call(
            "POST", f"{API_PREFIX}/{path}", body, repeatable=repeatable, patience_s=patience_s, answer_s=answer_s
        )
        return await self._exchange(call, answer)

    async def _join(
        self, train_job: BaseModel | Mapping[str, Any], refusal: Forbidden, boot_timeout_s: float
    ) -> Status:
        """Wait until the server serves the job, for a client whose token cannot set it.

        Raises `refusal` if the server has another job.
        """
        known = await self.job()
        own = build_job(train_job.model_dump() if isinstance(train_job, TrainJob) else dump_any(train_job))
        if known.resolved != own.resolve().model_dump(mode="json"):
            raise refusal
        return await self._wait_for(
            "the engine to serve", boot_timeout_s, lambda now: now.state in _SERVING, leaves={EngineState.FAILED}
        )

    async def _wait_for(
        self,
        what: str,
        timeout_s: float,
        is_reached: Callable[[Status], bool],
        leaves: Collection[EngineState] = (EngineState.FAILED, EngineState.OFFLINE),
    ) -> Status:
        """Poll the status until `is_reached`, and return it. A state in `leaves` ends the wait with an error."""
        deadline = time.monotonic() + timeout_s
        while True:
            present = await self.status()
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
                    f"waited {timeout_s:g} s for {what}: the engine is {present.state} at step {present.step}; wait"
                    " longer with a larger timeout"
                )
            await self._io.sleep(POLL_S)


def _last_step(known: Sequence[MetricPointView | EvaluationView], after_step: int) -> int:
    """Return the step after which the next page begins."""
    return known[-1].step if known else after_step


def name_by_digest(job: TrainJob) -> tuple[TrainJob, Path | None]:
    """Return the job with its demonstrations named by their digest, and the file that has them.

    The file is None where the job has no demonstrations, or names their digest itself. Raises BadRequest for a file
    that cannot be read.
    """
    if job.demonstrations is None or is_digest(job.demonstrations):
        return job, None
    path = Path(job.demonstrations)
    digest = digest_demonstrations(read_demonstration_file(path))
    return job.model_copy(update={"demonstrations": digest}), path


def names_file(job: Mapping[str, Any]) -> bool:
    """Return whether the demonstrations of a job are a file, which a client uploads before it sends the job."""
    name = job.get("demonstrations")
    return isinstance(name, str) and not is_digest(name)
