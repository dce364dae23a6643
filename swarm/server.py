"""The composition root of a server: builds the parts of a job, wires gateway and trainer, owns the engine's life.

Place in the flow: above everything but the CLI. What the parts do is theirs; here is only who is plugged where, and the
order of start, stop and failure.
"""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from typing import Any

import swarm
from swarm.backends import Backends
from swarm.batch import BatchPool
from swarm.config import ServerConfig, TrainJob, build_job
from swarm.engine.base import Engine, EngineInfo
from swarm.engine.state import EngineLifecycle
from swarm.errors import CheckpointError, EngineFailure, EngineNotReady, IllegalTransition, JobInvalid, SwarmError
from swarm.gateway.control import Control
from swarm.gateway.inference import ModelService
from swarm.gateway.rollout import Rollout
from swarm.ledger import JobRow, Ledger, OpenWork
from swarm.schemas import CheckpointResponse, ClientView, EngineState, PoolView, Status
from swarm.tracker.codec import Codec
from swarm.tracker.merge import merge
from swarm.trainer.base import Trainer
from swarm.trainer.loop import TrainLoop
from swarm.types import EpisodeType, FinishedEpisode, WeightVersion

logger = logging.getLogger(__name__)

STOP_TIMEOUT_S = 20.0


class SwarmServer:
    """One server: at most one job at a time. All methods are called from one event loop."""

    def __init__(self, config: ServerConfig, ledger: Ledger, backends: Backends) -> None:
        self._config = config
        self._ledger = ledger
        self._backends = backends
        self._started_at = time.time()
        self.shutdown_requested = asyncio.Event()
        self._job: TrainJob | None = None
        self._job_row: JobRow | None = None
        self._engine: Engine | None = None
        self._service: ModelService | None = None
        self._loop: TrainLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.lifecycle = EngineLifecycle(ledger.record_state)
        self.control = Control(
            status=self.status,
            job=lambda: self._job,
            sync_job=self.sync_job,
            start=self.start_engine,
            stop=self.stop_engine,
            checkpoint=self.checkpoint,
            shutdown=self.shutdown_requested.set,
        )

    @property
    def service(self) -> ModelService | None:
        return self._service

    async def sync_job(self, data: dict[str, Any]) -> TrainJob:
        """Take a job while no engine runs. Raises JobInvalid, or IllegalTransition while another job runs."""
        job = build_job(data)
        if job == self._job:
            return job
        if self.lifecycle.state not in {EngineState.OFFLINE, EngineState.FAILED}:
            raise IllegalTransition(f"another job is {self.lifecycle.state}: stop the engine before changing the job")
        self._job, self._job_row = job, None
        return job

    async def start_engine(self, resume: bool = True) -> None:
        """Begin to boot the synced job; returns at once. The state says when it rolls, or FAILED and why."""
        if self._job is None:
            raise JobInvalid("no job: sync a job before starting the engine")
        await self.lifecycle.move(EngineState.BOOTING)
        self._spawn(self._boot(self._job, resume), "boot")

    async def stop_engine(self) -> None:
        """Abort what runs and free the model. The job stays known. Idempotent."""
        if self.lifecycle.state is EngineState.OFFLINE:
            return
        await self.lifecycle.move(EngineState.OFFLINE)
        await self._tear_down("engine_stopped")

    async def checkpoint(self) -> CheckpointResponse:
        """Save now. Raises IllegalTransition unless the engine is rolling, CheckpointError if it cannot be written."""
        if self._loop is None:
            raise EngineNotReady("no engine is running: nothing to save")
        await self.lifecycle.move(EngineState.EXPORTING)
        try:
            path = await self._loop.save()
        except TimeoutError as error:
            raise CheckpointError("the checkpoint took too long: see the worker's log") from error
        finally:
            if self.lifecycle.state is EngineState.EXPORTING:
                await self.lifecycle.move(EngineState.ROLLING)
        weights = self.lifecycle.weights
        return CheckpointResponse(path=str(path.resolve()), step=weights.step, weight_version=weights.version)

    async def close(self) -> None:
        """Stop everything; the ledger is left to its owner."""
        await self.stop_engine()
        await self._backends.close()

    async def status(self) -> Status:
        job, service, weights = self._job, self._service, self.lifecycle.weights
        return Status(
            server_version=swarm.__version__,
            state=self.lifecycle.state,
            reason=self.lifecycle.reason,
            project_name=job.project_name if job else None,
            experiment_name=job.experiment_name if job else None,
            model=job.model if job else None,
            step=weights.step,
            total_steps=job.total_steps if job else None,
            weight_version=weights.version,
            pool=_view_pool(service.rollout) if service else None,
            policy=None,
            clients=_view_clients(service.rollout) if service else [],
            running=[],
            warnings=[],
            recoveries=0,
            failures=await self._ledger.failures(),
            tokens_per_second=service.tokens_per_second() if service else 0.0,
            last_metrics=self._loop.last_metrics if self._loop else {},
            started_at=self._started_at,
            now=time.time(),
        )

    async def _boot(self, job: TrainJob, resume: bool) -> None:
        resolved = job.resolve()
        engine, trainer = self._backends.build(resolved)
        self._engine = engine
        try:
            async with asyncio.timeout(self._config.boot_timeout_s):
                info = await engine.start()
                codec = await asyncio.to_thread(Codec.load, info.tokenizer_path)
                work = await self._open_work(job, resume)
                weights = await self._restore_weights(job, trainer, work)
        except TimeoutError:
            await self._fail(f"the engine did not start within {self._config.boot_timeout_s:.0f} s")
            return
        except SwarmError as error:
            await self._fail(error.message)
            return
        self.lifecycle.publish(weights)
        self._wire(resolved, engine, trainer, info, codec, work)
        await self.lifecycle.move(EngineState.ROLLING)

    def _wire(
        self, job: TrainJob, engine: Engine, trainer: Trainer, info: EngineInfo, codec: Codec, work: OpenWork | None
    ) -> None:
        pool = BatchPool(job, weight_version=self.lifecycle.weights.version)
        batch_ready = asyncio.Event()
        rollout = Rollout(
            job=job, info=info, pool=pool, ledger=self._ledger, lifecycle=self.lifecycle, batch_ready=batch_ready
        )
        if work is not None:
            pool.restore(_finished(work))
            if pool.ready:
                batch_ready.set()
        self._loop = TrainLoop(
            job=job,
            trainer=trainer,
            pool=pool,
            ledger=self._ledger,
            lifecycle=self.lifecycle,
            batch_ready=batch_ready,
            drain=rollout.drained,
            checkpoint_directory=lambda step: self._checkpoints(job) / f"step-{step:06d}",
            train_timeout_s=self._config.train_timeout_s,
        )
        self._service = ModelService(
            rollout=rollout,
            engine=engine,
            codec=codec,
            ledger=self._ledger,
            hold_s=self._config.hold_s,
            on_engine_failure=self._report_failure,
        )
        self._spawn(self._watch_backend(), "backend watch")
        self._spawn(self._train(self._loop), "training loop")
        self._spawn(rollout.expire_forever(), "episode expiry")

    async def _train(self, loop: TrainLoop) -> None:
        try:
            await loop.run()
        except SwarmError as error:
            await self._fail(error.message)

    async def _watch_backend(self) -> None:
        await self._fail(await self._backends.died())

    async def _open_work(self, job: TrainJob, resume: bool) -> OpenWork | None:
        """What an interrupted run of this very job left, or None for a fresh run (which the ledger then records).

        A run that trained but saved no checkpoint cannot go on: its weights are gone.
        """
        given = job.model_dump(mode="json", exclude_defaults=True)
        latest = await self._ledger.latest_job()
        work = None if latest is None else await self._ledger.recover()
        if resume and latest is not None and work is not None and dict(latest.job) == given:
            self._job_row = latest
            if work.step == 0 or self._newest_checkpoint(job) is not None:
                return work
            logger.warning("step %d of this job was never saved: starting over from the base model", work.step)
        self._job_row = await self._ledger.record_job(given, job.resolve().model_dump(mode="json"))
        return None

    async def _restore_weights(self, job: TrainJob, trainer: Trainer, work: OpenWork | None) -> WeightVersion:
        checkpoint = self._newest_checkpoint(job)
        if work is None or checkpoint is None:
            return WeightVersion(version=0, step=0, published_at=time.time())
        weights = await trainer.load(checkpoint)
        if weights.step < work.step:
            await self._ledger.rewind(weights.step, "resumed from the newest checkpoint")
        logger.info("resumed %s at step %d", checkpoint, weights.step)
        return weights

    async def _fail(self, reason: str) -> None:
        logger.error("engine failed: %s", reason)
        if self.lifecycle.state in {EngineState.OFFLINE, EngineState.FAILED}:
            return
        await self.lifecycle.move(EngineState.FAILED, reason)
        await self._tear_down("engine_failed")

    def _report_failure(self, error: EngineFailure) -> None:
        self._spawn(self._fail(error.message), "engine failure")

    async def _tear_down(self, reason: str) -> None:
        service, engine = self._service, self._engine
        self._service = self._engine = self._loop = None
        current = asyncio.current_task()
        doomed = [task for task in self._tasks if task is not current]
        for task in doomed:
            task.cancel()
        if doomed:
            await asyncio.wait(doomed, timeout=STOP_TIMEOUT_S)
        if service is not None:
            await service.rollout.close(reason)
        if engine is not None:
            try:
                async with asyncio.timeout(STOP_TIMEOUT_S):
                    await engine.stop()
            except (TimeoutError, EngineFailure) as error:
                logger.warning("the engine did not stop cleanly: %s", error)

    def _spawn(self, work: Any, name: str) -> None:
        task: asyncio.Task[None] = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("%s ended with an unexpected error", task.get_name(), exc_info=error)
            self._spawn(self._fail(f"{task.get_name()}: {type(error).__name__}: {error}"), "failure report")

    def _experiment(self, job: TrainJob) -> Path:
        return self._config.home / _file_name(job.project_name) / _file_name(job.experiment_name)

    def _checkpoints(self, job: TrainJob) -> Path:
        assert self._job_row is not None, "the run is recorded before anything is saved"
        return self._experiment(job) / f"run-{self._job_row.job_id:04d}" / "checkpoints"

    def _newest_checkpoint(self, job: TrainJob) -> Path | None:
        found = sorted(path for path in self._checkpoints(job).glob("step-*") if path.is_dir())
        return found[-1] if found else None


def _finished(work: OpenWork) -> list[FinishedEpisode]:
    return [
        FinishedEpisode(
            episode_id=episode.row.episode_id,
            task_id=episode.row.task_id or "",
            client_id=episode.row.client_id,
            reward=episode.row.reward or 0.0,
            is_success=episode.row.is_success,
            samples=merge(episode.turns),
            ended_at=episode.row.ended_at or 0.0,
        )
        for episode in work.completed
        if episode.row.episode_type is EpisodeType.TRAIN
    ]


def _file_name(name: str) -> str:
    """A caller-chosen name as one path component: no separators, no leading dot."""
    return name.replace("/", "_").replace(":", "_").lstrip(".") or "_"


def _view_pool(rollout: Rollout) -> PoolView:
    progress = rollout.pool.progress()
    return PoolView(
        stop_rule=progress.stop_rule,
        episodes=progress.episodes,
        episodes_target=progress.episodes_target,
        tasks=progress.tasks,
        tasks_target=progress.tasks_target,
        running_train=rollout.running(EpisodeType.TRAIN),
        running_eval=rollout.running(EpisodeType.EVAL),
        sources={},
        agreed=[],
    )


def _view_clients(rollout: Rollout) -> list[ClientView]:
    running = rollout.running_by_client()
    return [
        ClientView(
            client_id=client_id,
            last_seen_at=seen.last_seen_at,
            running=running[client_id],
            completed=seen.completed,
            lost=0,
        )
        for client_id, seen in sorted(rollout.clients.items())
    ]
