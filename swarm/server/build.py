"""The construction of a run from its job and from the state of an earlier run in the ledger."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path

from swarm.backends.base import Backend, Backends
from swarm.batch import BatchPolicy, BatchPool, assemble
from swarm.config import ServerConfig
from swarm.demonstrations import parse_demonstrations
from swarm.errors import BadRequest, EngineFailure, JobInvalid
from swarm.job import TrainJob
from swarm.ledger import BatchRow, JobRow, Ledger, OpenWork
from swarm.live_settings import JobTimeline, with_settings
from swarm.processes.imports import collector_paused
from swarm.rollout.completion import ModelService
from swarm.rollout.episodes import Episodes
from swarm.rollout.results import finished_episode, salvaged_episode
from swarm.rollout.running import REMEMBERED_EPISODES
from swarm.rollout.transactions.coordinator_client import CoordinatorClient
from swarm.rollout.waiting_sampler import WaitingSampler
from swarm.run.call_metrics import TokenRate
from swarm.run.evaluations import Evaluations
from swarm.run.guard import RunHistory, TrainingGuard
from swarm.run.lifecycle import EngineLifecycle
from swarm.run.running_job import RunningJob
from swarm.sampler import SamplerInfo
from swarm.server.demonstrations import unknown_demonstrations
from swarm.server.initial_weights import InitialWeights, resumed_checkpoint
from swarm.server.run import JobRun
from swarm.tracker.codec import Codec
from swarm.tracker.supervised import encode_demonstrations
from swarm.trainer.checkpoints import RunCheckpoints, run_directory, runs_of
from swarm.trainer.loop import TrainLoop
from swarm.trainer.recovery import ReadBatch, Recovery
from swarm.trainer.supervision import Supervision
from swarm.types import EpisodeType, FinishedEpisode, TrainBatch, WeightVersion

logger = logging.getLogger(__name__)

EVENTS_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class Assembly:
    """The parts that all runs of a server share. `fail` ends the present run."""

    config: ServerConfig
    ledger: Ledger
    lifecycle: EngineLifecycle
    backends: Backends
    coordinator_client: CoordinatorClient
    fail: Callable[[str], Awaitable[None]]
    on_engine_failure: Callable[[EngineFailure], bool]

    async def build(self, job: TrainJob, row: JobRow, work: OpenWork | None, crashed_at: float | None) -> JobRun:
        """Return a run of `job`, as it was given. The caller starts it with `carry_on`.

        The run continues with `work`, or begins if `work` is None. `crashed_at` is when a crashed
        server began to recover, in seconds of the monotonic clock. Raise EngineFailure if the model does not exist,
        JobInvalid if it has no chat template.
        """
        initial = InitialWeights(self.config, self.ledger, self.backends, self._reader_of, self._checkpoints_of)
        is_fresh = work is None and job.resume_from is None
        backend = self.backends.build(await initial.job_for_engine(job, row), is_fresh=is_fresh)
        # The worker process imports its libraries while this process imports those of the tokenizer.
        await backend.warm_up()
        with collector_paused("transformers"):
            codec, history = await asyncio.gather(_load_codec(job, backend), self._read_history())
        supervision = await self._supervision_of(job, codec)
        self.lifecycle.publish(_weights_of(row, work))
        running_job = RunningJob(
            JobTimeline(job, await self.ledger.job_changes(row.job_id)),
            self.ledger.record_change,
            filling=self.lifecycle.weights.step + 1,
            check=self.backends.check,
        )
        episodes = await self._open_episodes(running_job, work)
        if work is None:
            await asyncio.to_thread(_retire_earlier, self.config.home, row.job_id)
        checkpoints = self._checkpoints_of(job, row)
        guard = TrainingGuard(running_job, self.ledger, history, initial_step=row.initial_step)
        return JobRun(
            config=self.config,
            ledger=self.ledger,
            lifecycle=self.lifecycle,
            backend=backend,
            service=self._open_service(episodes, backend, codec),
            loop=await self._open_loop(running_job, backend, episodes, checkpoints, guard, supervision, work),
            recovery=Recovery(
                self.ledger,
                backend.trainer,
                checkpoints,
                self._reader(job, supervision),
                self.config.train_timeout_s,
                resume_from=resumed_checkpoint(job),
                initial_step=row.initial_step,
            ),
            fail=self.fail,
            recoveries=history.recoveries,
            crashed_at=crashed_at,
        )

    def _checkpoints_of(self, job: TrainJob, row: JobRow) -> RunCheckpoints:
        return RunCheckpoints(run_directory(self.config.home, job.project_name, job.experiment_name, row.job_id))

    async def _open_episodes(self, running_job: RunningJob, work: OpenWork | None) -> Episodes:
        job = running_job.at(running_job.filling)
        pool = BatchPool(
            BatchPolicy.of(job),
            weight_version=self.lifecycle.weights.version,
            trained_groups=await self.ledger.trained_groups_by_source(),
        )
        episodes = Episodes(
            running_job=running_job,
            info=SamplerInfo(job.model, "", job.max_model_len or 0, 0, "not started"),
            pool=pool,
            ledger=self.ledger,
            lifecycle=self.lifecycle,
            max_running=self.config.max_running_episodes,
            max_wait_s=self.config.max_wait_s,
            coordinator_client=self.coordinator_client,
        )
        episodes.remember(await self.ledger.closed_episodes(REMEMBERED_EPISODES))
        if work is not None:
            completed = [each for each in work.completed if each.row.episode_type is EpisodeType.TRAIN]
            pool.restore([salvaged_episode(each.row, each.turns) for each in completed])
            episodes.restore(work.running)
        return episodes

    async def _open_loop(
        self,
        running_job: RunningJob,
        backend: Backend,
        episodes: Episodes,
        checkpoints: RunCheckpoints,
        guard: TrainingGuard,
        supervision: Supervision,
        work: OpenWork | None,
    ) -> TrainLoop:
        evaluations = Evaluations(running_job, self.lifecycle, self.ledger)
        await evaluations.restore()
        return TrainLoop(
            job=running_job,
            trainer=backend.trainer,
            source=episodes,
            ledger=self.ledger,
            lifecycle=self.lifecycle,
            checkpoints=checkpoints,
            evaluations=evaluations,
            guard=guard,
            train_timeout_s=self.config.train_timeout_s,
            recovery_overhead=self.config.recovery_overhead,
            supervision=supervision,
            last_metrics=await self._last_metrics(work),
        )

    def _open_service(self, episodes: Episodes, backend: Backend, codec: Codec) -> ModelService:
        rate = TokenRate(lambda: self.lifecycle.moved_at)
        return ModelService(
            episodes=episodes,
            sampler=WaitingSampler(
                backend.sampler, self.lifecycle, self.config.max_wait_s, self.on_engine_failure, rate
            ),
            rate=rate,
            codec=codec.bounded(episodes.context_length),
            ledger=self.ledger,
        )

    async def _supervision_of(self, job: TrainJob, codec: Codec) -> Supervision:
        """Return the encoded demonstrations of a job. Raise JobInvalid for what its model cannot be trained on."""
        if job.demonstrations is None:
            return Supervision()
        content = await self.ledger.demonstrations(job.demonstrations)
        if content is None:
            raise JobInvalid(unknown_demonstrations(job.demonstrations), param="demonstrations")

        def encode() -> Supervision:
            return Supervision.of(job.resolve(), encode_demonstrations(codec, parse_demonstrations(content)))

        try:
            return await asyncio.to_thread(encode)
        except BadRequest as error:
            raise JobInvalid(f"demonstrations: {error.message}", param="demonstrations") from error

    async def _reader_of(self, job: TrainJob, backend: Backend) -> ReadBatch:
        """Return the reader of the batches of a run of `job`."""
        if job.demonstrations is None:
            return self._reader(job, Supervision())
        return self._reader(job, await self._supervision_of(job, await _load_codec(job, backend)))

    def _reader(self, job: TrainJob, supervision: Supervision) -> ReadBatch:
        async def read(row: BatchRow) -> TrainBatch:
            batch = await self._read_batch(row)
            return supervision.complete(batch, with_settings(job.resolve(), batch.settings).resolve())

        return read

    async def _read_batch(self, row: BatchRow) -> TrainBatch:
        episodes = await self.ledger.batch_episodes(row.batch_id)
        if any(len(each.turns) < each.row.turns for each in episodes):
            raise ValueError(f"the tokens of batch {row.batch_id} are no longer stored")
        groups: defaultdict[int | None, list[FinishedEpisode]] = defaultdict(list)
        for each in episodes:
            groups[each.row.batch_group].append(finished_episode(each.row, each.turns))
        return replace(assemble(row.batch_id, row.step, groups.values()), settings=row.settings)

    async def _last_metrics(self, work: OpenWork | None) -> dict[str, float]:
        if work is None:
            return {}
        # The step that a run began at is not on its own record.
        points = await self.ledger.trained_batches(work.step - 1, 1)
        return dict(points[0].metrics) if points else {}

    async def _read_history(self) -> RunHistory:
        history, after_id = RunHistory(), 0
        while events := await self.ledger.events(after_id, EVENTS_AT_ONCE):
            history = reduce(RunHistory.then, events, history)
            after_id = events[-1].event_id
        return history


async def _load_codec(job: TrainJob, backend: Backend) -> Codec:
    return await asyncio.to_thread(
        Codec.load, backend.tokenizer_path, tool_parser=job.tool_parser, reasoning_parser=job.reasoning_parser
    )


def _retire_earlier(home: Path, number: int) -> None:
    """Remove the recovery checkpoints of earlier runs, which are not resumed any more.

    The newest checkpoint of each run stays, and so do the checkpoints that were saved to be kept.
    """
    for run in runs_of(home):
        if run.number < number:
            run.checkpoints.retire()


def _weights_of(row: JobRow, work: OpenWork | None) -> WeightVersion:
    """Return the weights that the run will serve once its engine is up."""
    if work is None:
        return WeightVersion(version=row.initial_step, step=row.initial_step, published_at=0.0)
    return WeightVersion(version=work.weight_version, step=work.step, published_at=0.0)
