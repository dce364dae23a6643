"""The server behind the control API: its job, the state of its engine, and the effect of each command."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from swarm.backends.base import Backends
from swarm.config import ServerConfig
from swarm.errors import (
    EngineFailure,
    EngineNotReady,
    IllegalTransition,
    JobInvalid,
    LaunchConflict,
    LedgerError,
    SwarmError,
    WeightsNotFinite,
)
from swarm.gateway.control.server_routes import Control
from swarm.job import TrainJob, build_job
from swarm.ledger import JobRow, LaunchRow, Ledger, OpenWork, StateRow
from swarm.live_settings import JobTimeline
from swarm.model_path import lr_by_size
from swarm.rollout.completion import ModelService
from swarm.rollout.transactions.coordinator_client import CoordinatorClient
from swarm.run.lease import ServerLease
from swarm.run.lifecycle import EngineLifecycle
from swarm.run.lost_episodes import LostEpisodes
from swarm.schemas import ChangeJobRequest, CheckpointResponse, EngineState, JobView, LaunchView, Resume, Status
from swarm.server.build import Assembly
from swarm.server.demonstrations import require_demonstrations, store_demonstrations
from swarm.server.evaluator import environment_of, evaluator_of
from swarm.server.initial_weights import require_resumable
from swarm.server.run import JobRun
from swarm.server.status import DiskMeter, build_job_view, build_status

logger = logging.getLogger(__name__)

T = TypeVar("T")

STOP_TIMEOUT_S = 20.0
STARTABLE = frozenset({EngineState.OFFLINE, EngineState.FAILED})
SUSPENDED = "the server was shut down: its next start goes on with this job"
"""The recorded reason of a stop that no command asked for. The next start of the server resumes the job."""


class SwarmServer:
    """A server with at most one job at a time. All methods are called from one event loop."""

    def __init__(self, config: ServerConfig, ledger: Ledger, backends: Backends, *, url: str | None = None) -> None:
        """Create a server without a job. Its own evaluator reaches it at `url`; without a `url`, none runs."""
        self._config = config
        self._url = url
        self._ledger = ledger
        self._backends = backends
        self._started_at = time.time()
        self._began = time.monotonic()
        self.shutdown_requested = asyncio.Event()
        self.ends_by_failure = False
        """Whether a failure of the engine ends the process. The process then reports the reason itself."""
        self._job: TrainJob | None = None
        self._run: JobRun | None = None
        self._commands = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.lifecycle = EngineLifecycle(ledger.record_state)
        self.lease = ServerLease(ledger)
        self.lost = LostEpisodes(ledger)
        self._disk = DiskMeter(config.home)
        self._coordinator_client = CoordinatorClient(config.host, config.peers)
        self._assembly = Assembly(
            config=config,
            ledger=ledger,
            lifecycle=self.lifecycle,
            backends=backends,
            coordinator_client=self._coordinator_client,
            fail=self._fail,
            on_engine_failure=self._report_failure,
        )
        self.control = Control(
            status=self.status,
            job=self.view_job,
            sync_job=self.sync_job,
            change_job=self.change_job,
            add_demonstrations=lambda content: store_demonstrations(ledger, content),
            start=self.start_engine,
            launch=self.launch,
            launches=self.launches,
            lease=self.lease,
            lost=self.lost,
            stop=self.stop_engine,
            checkpoint=self.checkpoint,
            load=self.load,
            evaluations=lambda: self._require_run().loop.evaluations,
            shutdown=self.shutdown_requested.set,
        )

    @property
    def job(self) -> TrainJob | None:
        """The job as the run was given it, without later changes."""
        return self._job

    def find_service(self) -> ModelService | None:
        """Return the service for model calls, or None while no engine runs or boots."""
        return self._run.service if self._run else None

    async def resume(self, wanted: TrainJob | None = None) -> bool:
        """Resume the job that a crash or a shutdown interrupted. Return whether there was one.

        With `wanted`, resume only if it is the same job; it may have more `total_steps`. On return the server knows the
        job's episodes again, while the engine still boots. The state tells when it serves or why it failed.
        """
        async with self._commands:
            states = await self._ledger.states(1)
            if not states or not _was_interrupted(states[-1]) or (known := await self._on_record()) is None:
                return False
            _, timeline = known
            if wanted is not None and not (timeline.is_meant_by(wanted) or timeline.is_extended_by(wanted)):
                return False
            was_crash = states[-1].state != EngineState.OFFLINE
            self._job, row, work = await self._open_work(wanted or timeline.job, resume=True)
            job = self._job
            await self.lifecycle.move(EngineState.BOOTING, "going on after a crash" if was_crash else None)
            crashed_at = self._began if was_crash else None
        if await self._assemble(job, row, work, crashed_at):
            self._spawn(self._carry_on(), "engine")
        return True

    def view_job(self) -> JobView:
        """Return the job and, while an engine runs, its changes."""
        return build_job_view(self._job, self._run)

    async def change_job(self, wanted: ChangeJobRequest) -> JobView:
        """Change settings of the running job from a step on.

        Raise EngineNotReady without a running engine, and the errors of `RunningJob.change`.
        """
        async with self._commands:
            run = self._require_run()
            await run.change(wanted.settings, wanted.at_step, wanted.expected_revision)
            return self.view_job()

    async def sync_job(self, data: dict[str, Any]) -> JobView:
        """Set the job while no engine runs, or give the present job more `total_steps`.

        Raise JobInvalid, IllegalTransition while another job runs, and EngineNotReady for more steps during a boot.
        """
        job = build_job(data)
        await self._check(job)
        async with self._commands:
            if self._job is not None and (self._timeline or JobTimeline(self._job)).is_meant_by(job):
                return self.view_job()
            if self.lifecycle.state not in STARTABLE:
                await self._extend(job)
            else:
                self._job = job
            return self.view_job()

    async def _check(self, job: TrainJob) -> None:
        """Raise JobInvalid if this server cannot run the job."""
        await asyncio.to_thread(self._backends.check, job)
        environment_of(job, self._config)
        await require_demonstrations(self._ledger, job)

    @property
    def _timeline(self) -> JobTimeline | None:
        """The job of the present run with its changes, or None while no engine runs or boots."""
        return None if self._run is None else self._run.job.timeline

    async def _extend(self, job: TrainJob) -> None:
        """Give the running job more steps. Raise IllegalTransition for another job, EngineNotReady during a boot."""
        timeline = self._timeline or (None if self._job is None else JobTimeline(self._job))
        if timeline is None or not timeline.is_extended_by(job):
            raise IllegalTransition(
                f"another job is {self.lifecycle.state}{_name_of(self._job)}: stop it first, with stop_engine(),"
                " force_restart=True or `swarm stop --engine-only`"
            )
        if self._run is None or self.lifecycle.state is EngineState.BOOTING:
            raise EngineNotReady("the engine is booting: extend total_steps once it serves", retry_after_s=1)
        if timeline.has_changed_end:
            await self._run.change({"total_steps": job.total_steps}, None, None)
            return
        self._job = timeline.job.model_copy(update={"total_steps": job.total_steps})
        await self._ledger.extend_job(*_as_recorded(self._job))
        await self._run.extend(self._job)

    async def start_engine(self, resume: Resume = True) -> None:
        """Begin to boot the synced job and return at once. The state tells when it serves or why it failed.

        Raise JobInvalid without a job, or if the job cannot start from the present weights or its `resume_from`. Raise
        IllegalTransition if the engine is started already.
        """
        async with self._commands:
            job = self._job
            if job is None:
                raise JobInvalid("no job: sync a job before starting the engine")
            if self.lifecycle.state not in STARTABLE:
                raise IllegalTransition(f"the engine is {self.lifecycle.state}: it is already started")
            # Recorded before the state changes: a crash between the two must not resume the previous job.
            self._job, row, work = await self._open_work(job, resume)
            job = self._job
            await self.lifecycle.move(EngineState.BOOTING)
            self._spawn(self._boot(job, row, work), "engine")

    async def launch(self, key: str, data: dict[str, Any]) -> LaunchView:
        """Begin to boot a job as a new run, once per key. With a known key, only return the state of its run.

        Raise JobInvalid, also for a `resume_from` that it cannot begin at. Raise LaunchConflict while another run is
        active, or if the key was used for another job.
        """
        job = build_job(data)
        await self._check(job)
        async with self._commands:
            if known := next(iter(await self._ledger.launches(key)), None):
                earlier = _recorded(known.job)
                if earlier is None or not (job.means(earlier) or earlier.extends(job)):
                    raise LaunchConflict(f"the key {key} was used for another job: give every run its own", param="key")
                return self._view_launch(known)
            if self.lifecycle.state not in STARTABLE:
                running = await self._ledger.newest_launch_key()
                name = _name_of(self._job) if running is None else f" (launched as {running})"
                raise LaunchConflict(f"another run is {self.lifecycle.state}{name}: stop it first, or wait for its end")
            # Recorded before the engine boots: even after a crash, the same key never starts the job twice.
            row = await self._ledger.record_launch(
                key, *_as_recorded(job), initial_step=await asyncio.to_thread(require_resumable, job)
            )
            self._job = job
            await self.lifecycle.move(EngineState.BOOTING)
            self._spawn(self._boot(job, row, None), "engine")
            return self._view_launch(LaunchRow(key, row, row.created_at, 0, True)).model_copy(update={"is_new": True})

    async def launches(self, key: str | None, limit: int) -> list[LaunchView]:
        """Return the runs that were launched under a key, newest first. With `key`, return only its run."""
        return [self._view_launch(known) for known in await self._ledger.launches(key, limit)]

    def _view_launch(self, known: LaunchRow) -> LaunchView:
        state, total = self.lifecycle.state, known.job.resolved["total_steps"]
        if known.is_newest and self._run is not None:
            total = self._run.job.at(self.lifecycle.weights.step + 1).total_steps or total
        if not known.is_newest:
            outcome, reason = "replaced", "a later run of this server took its place"
        elif state is EngineState.FAILED:
            outcome, reason = "failed", self.lifecycle.reason
        elif state is EngineState.OFFLINE:
            outcome, reason = "stopped", self.lifecycle.reason
        else:
            outcome, reason = ("done" if state is EngineState.COMPLETE else "running"), self.lifecycle.reason
        return LaunchView(
            key=known.key, outcome=outcome, step=known.step, total_steps=total, reason=reason, began_at=known.at
        )

    async def stop_engine(self) -> None:
        """Abort running episodes and free the model. The server keeps the job. A second call does nothing."""
        async with self._commands:
            if self.lifecycle.state is EngineState.OFFLINE:
                return
            await self.lifecycle.move(EngineState.OFFLINE)
            await self._tear_down("engine_stopped")

    async def checkpoint(self) -> CheckpointResponse:
        """Save a checkpoint now. Raise IllegalTransition unless the engine is ROLLING, CheckpointError on failure."""
        path = await self._undisturbed(self._require_run().export(), "checkpoint")
        weights = self.lifecycle.weights
        return CheckpointResponse(path=str(path.resolve()), step=weights.step, weight_version=weights.version)

    async def load(self, step: int, end: bool = False) -> None:
        """Go back to an earlier step of this run. With `end` the job ends with that step.

        Raise IllegalTransition unless the engine is ROLLING, and NotFound for a step that the run has not reached.
        """
        await self._undisturbed(self._require_run().load(step, end=end), "load")

    async def close(self) -> None:
        """End the engine. Only a requested shutdown ends the job as well. The caller closes the ledger."""
        if self.shutdown_requested.is_set():
            await self.stop_engine()
        else:
            await self._suspend()
        await self._backends.close()
        await self._coordinator_client.close()

    async def status(self) -> Status:
        """Return a snapshot of the server.

        The failures are read after the step, so the episodes that a batch dropped are counted once its step is shown.
        """
        status = build_status(self._job, self._run, self.lifecycle, started_at=self._started_at)
        try:
            failures, fault = await self._ledger.failures(), None
        except LedgerError as error:
            failures, fault = dict[str, int](), error.message
        return status.model_copy(
            update={
                "failures": failures,
                "ledger_fault": fault,
                "lease": self.lease.view(),
                "lost": self.lost.views(),
                "disk": await self._disk.view(),
            }
        )

    async def _on_record(self) -> tuple[JobRow, JobTimeline] | None:
        """Return the newest run and its job with all changes, or None if there is no run with a valid job."""
        row = await self._ledger.latest_job()
        job = None if row is None else _recorded(row)
        if row is None or job is None:
            return None
        try:
            return row, JobTimeline(job, await self._ledger.job_changes(row.job_id))
        except JobInvalid as error:
            logger.error("the job on record is not valid: %s", error.message)
            return None

    async def _open_work(self, job: TrainJob, resume: Resume) -> tuple[TrainJob, JobRow, OpenWork | None]:
        """Return the job as its run was given it, the run, and the work of an earlier run of the job.

        The work is None for a new run, which this method records in the ledger. Raise JobInvalid if the new run cannot
        start from the present weights or from its `resume_from`.
        """
        if resume and (known := await self._on_record()) is not None:
            row, timeline = known
            if timeline.is_meant_by(job):
                return timeline.job, row, await self._ledger.recover()
            if timeline.is_extended_by(job):
                work = await self._ledger.recover()
                if timeline.has_changed_end:
                    end = {"total_steps": job.total_steps}
                    await self._ledger.record_change(timeline.with_change(work.step + 1, end).changes[-1])
                    return timeline.job, row, work
                longer = timeline.job.model_copy(update={"total_steps": job.total_steps})
                return longer, await self._ledger.extend_job(*_as_recorded(longer)), work
            if resume == "weights" and job.model != timeline.job.model:
                raise JobInvalid(
                    f"model: the existing weights are those of {timeline.job.model}, not of {job.model}: leave resume"
                    " out to begin with the model itself",
                    param="model",
                )
            if resume == "weights" and timeline.job.lora_rank and timeline.job.chosen_engine == "local":
                raise JobInvalid(
                    "lora_rank: the existing weights are an adapter: swarm export --merge-lora writes the whole model,"
                    " whose directory a new job can have as its model",
                    param="lora_rank",
                )
        if resume == "weights" and job.resume_from is not None:
            raise JobInvalid(
                "resume_from: the run would begin at this checkpoint and with the existing weights: leave one out",
                param="resume_from",
            )
        if (suits := await asyncio.to_thread(lr_by_size, job)) is not None:
            lr = job.resolve().lr
            logger.warning("the job gives no lr, so it is %g: %g would suit the size of %s", lr, suits, job.model)
        initial_step = await asyncio.to_thread(require_resumable, job)
        row = await self._ledger.record_job(
            *_as_recorded(job), from_weights=resume == "weights", initial_step=initial_step
        )
        return job, row, None

    async def _boot(self, job: TrainJob, row: JobRow, work: OpenWork | None) -> None:
        if await self._assemble(job, row, work, crashed_at=None):
            await self._carry_on()

    async def _assemble(self, job: TrainJob, row: JobRow, work: OpenWork | None, crashed_at: float | None) -> bool:
        try:
            self._run = await self._assembly.build(job, row, work, crashed_at)
        except SwarmError as error:
            await self._fail(error.message)
            return False
        self._spawn(self._run.episodes.expire_forever(), "episode expiry")
        self._spawn(self._run.loop.evaluations.expire_forever(), "evaluation expiry")
        if self._url is not None and (evaluator := evaluator_of(self._run, job, self._config, self._url)) is not None:
            self._spawn(evaluator.run_forever(), "evaluator")
        return True

    async def _carry_on(self) -> None:
        assert self._run is not None, "a run is assembled before it is carried on"
        try:
            await self._run.carry_on()
        except SwarmError as error:
            await self._fail(error.message)

    async def _fail(self, reason: str, *, has_diverged: bool = False) -> None:
        async with self._commands:
            if self.lifecycle.state in STARTABLE:
                # It was stopped meanwhile, and what the stop interrupted is no failure.
                return
            logger.log(logging.INFO if self.ends_by_failure else logging.ERROR, "engine failed: %s", reason)
            await self._move_if_recorded(EngineState.FAILED, reason, has_diverged=has_diverged)
            await self._tear_down("engine_failed")

    async def _suspend(self) -> None:
        """End the engine without aborting anything. The next start of the server resumes the job."""
        async with self._commands:
            if self.lifecycle.state not in STARTABLE:
                await self._move_if_recorded(EngineState.OFFLINE, SUSPENDED)
            # No unload request first: a worker in the middle of a training step would answer it only much later.
            await self._backends.close()
            await self._tear_down(None)

    async def _move_if_recorded(self, state: EngineState, reason: str, *, has_diverged: bool = False) -> None:
        """Change the state even if the ledger cannot record it: a broken ledger must not keep the engine running."""
        try:
            await self.lifecycle.move(state, reason, has_diverged=has_diverged)
        except LedgerError as error:
            logger.error("the engine is %s, which could not be recorded: %s", state, error.message)

    def _report_failure(self, error: EngineFailure) -> bool:
        """End the run by a failure of its engine. Return True if the run repairs it instead."""
        if self._run is not None and isinstance(error, WeightsNotFinite) and self._run.loop.repairs(error):
            return True
        has_diverged = isinstance(error, WeightsNotFinite) and self.lifecycle.weights.version > 0
        self._spawn(self._fail(error.message, has_diverged=has_diverged), "engine failure")
        return False

    async def _tear_down(self, reason: str | None) -> None:
        """End all tasks of the run. With a `reason`, abort its episodes as well."""
        run, self._run = self._run, None
        current = asyncio.current_task()
        doomed = [task for task in self._tasks if task is not current]
        for task in doomed:
            task.cancel()
        if doomed:
            await asyncio.wait(doomed, timeout=STOP_TIMEOUT_S)
        if run is not None:
            await run.close(reason)

    def _require_run(self) -> JobRun:
        if self._run is None:
            raise self.lifecycle.refusal()
        return self._run

    async def _undisturbed(self, work: Coroutine[Any, Any, T], name: str) -> T:
        """Finish the work even if the caller disconnects. The end of the run cancels it."""
        task = self._spawn(work, name, is_watched=False)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise EngineNotReady(f"the engine was stopped during this {name}") from None
            raise

    def _spawn(self, work: Coroutine[Any, Any, T], name: str, *, is_watched: bool = True) -> asyncio.Task[T]:
        """Start a task that ends with the run. An unexpected error in a watched task ends the run."""
        task: asyncio.Task[T] = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if is_watched:
            task.add_done_callback(self._on_task_done)
        return task

    def _on_task_done(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("%s ended with an unexpected error", task.get_name(), exc_info=error)
            self._spawn(self._fail(f"{task.get_name()}: {type(error).__name__}: {error}"), "failure report")


def _as_recorded(job: TrainJob) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the job as it was given, and the job with every default filled in."""
    return job.model_dump(mode="json", exclude_defaults=True), job.resolve().model_dump(mode="json")


def _recorded(row: JobRow) -> TrainJob | None:
    """Return the recorded job, or None if it is no longer valid. An invalid job equals no other job."""
    try:
        return build_job(dict(row.job))
    except JobInvalid:
        return None


def _name_of(job: TrainJob | None) -> str:
    return "" if job is None else f" ({job.project_name}/{job.experiment_name})"


def _was_interrupted(newest: StateRow) -> bool:
    """Return whether the engine ended without a command.

    A failed engine waits for a person, and a stopped engine waits for a start command. Neither was interrupted.
    """
    if newest.state == EngineState.OFFLINE:
        return newest.reason == SUSPENDED
    return newest.state != EngineState.FAILED
