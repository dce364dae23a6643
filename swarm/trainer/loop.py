"""The training loop: wait for a complete batch, drain, close it, step, publish, save; repeat until the job is done."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from swarm.batch import ClosedBatch
from swarm.batch.step_metrics import batch_metrics
from swarm.errors import (
    CheckpointError,
    EngineFailure,
    IllegalTransition,
    LedgerError,
    LedgerUnwritable,
    RevisionConflict,
    SwarmError,
    WeightsNotFinite,
)
from swarm.ledger import EvaluationRow, Ledger
from swarm.run.evaluations import Evaluations
from swarm.run.guard import TrainingGuard
from swarm.run.lifecycle import EngineLifecycle
from swarm.run.running_job import RunningJob
from swarm.sampler import EngineLost
from swarm.schemas import EngineState
from swarm.trainer.base import BatchSource, Trainer
from swarm.trainer.checkpoints import Retention, RunCheckpoints
from swarm.trainer.supervision import Supervision
from swarm.types import StepReport, TrainBatch

logger = logging.getLogger(__name__)

MAX_CONSECUTIVE_FAILURES = 3
LEDGER_PATIENCE_S = 600.0
"""Longest wait for a disk that refuses writes; the write is repeated every LEDGER_RETRY_S seconds."""
LEDGER_RETRY_S = 1.0
TIMEOUT_GRACE_S = 5.0
"""Extra time for a trainer that keeps the time limit itself, because it can report the outcome of the step."""

Record = Callable[[], Awaitable[None]]
GoBack = Callable[[int, Record], Awaitable[None]]
"""A function that serves the weights of an earlier step, once the record of it is durable. Raises CheckpointError if
nothing has changed."""

RESTING = frozenset({EngineState.ROLLING, EngineState.COMPLETE})
"""States in which no batch is in progress."""


@dataclass(slots=True)
class TrainLoop:
    """Training loop of one job.

    `run` returns after `interrupt`. Once `total_steps` are done, it waits for a job with more steps. Checkpoints for
    crash recovery take at most the share `recovery_overhead` of the training time.
    """

    job: RunningJob
    trainer: Trainer
    source: BatchSource
    ledger: Ledger
    lifecycle: EngineLifecycle
    checkpoints: RunCheckpoints
    evaluations: Evaluations
    guard: TrainingGuard
    train_timeout_s: float
    recovery_overhead: float
    supervision: Supervision = field(default_factory=Supervision)
    last_metrics: dict[str, float] = field(default_factory=dict[str, float])
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Lock from the end of a batch's collection to the end of its step, and for operations between two batches."""
    _interrupted: asyncio.Event = field(default_factory=asyncio.Event)
    _look_again: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when there may be new steps to do."""
    _guarded_step: int = -1
    """The step whose weights the guard has looked at, or -1."""
    _failures: int = 0
    _unsaved_s: float = 0.0
    _save_s: float = 0.0

    def __post_init__(self) -> None:
        self.evaluations.subscribe(self._show_score)

    async def run(self, go_back: GoBack) -> None:
        """Train until `interrupt`. A fault that the guard finds may end in an earlier step, by `go_back`.

        Raise EngineLost if the engine dies in a step; the batch of that step is then back in the pool. Raise
        EngineFailure when training cannot continue.
        """
        self._interrupted.clear()
        # The server may have died between a step and what follows from its fault.
        self._guarded_step = -1
        self._look_again.set()
        while not self._interrupted.is_set():
            await self._until_due()
            async with self.turn:
                if self.lifecycle.state in RESTING and self.lifecycle.weights.step != self._guarded_step:
                    await self._follow_guard(go_back)
                await self._rest_anew_if_changed()
                if self._may_take_batch and not self._interrupted.is_set():
                    await self._take_batch(go_back)

    def interrupt(self) -> None:
        """Make `run` return at the next point between two complete operations."""
        self._interrupted.set()

    async def rest(self) -> None:
        """Move the engine to the state between batches: ROLLING, or COMPLETE once all steps are done.

        Weights that wait for an evaluation are served until they are scored. Meanwhile the next batch is collected, not
        trained.
        """
        await self._persist(self.evaluations.open_if_due)
        if not self._done:
            await self._move(EngineState.ROLLING)
            return
        # A later continuation, also by a restarted server, begins with the newest checkpoint.
        await asyncio.to_thread(self.checkpoints.retire)
        await self._move(
            EngineState.COMPLETE,
            # Short enough for one line of a terminal.
            self.guard.end_at(self.lifecycle.weights.step)
            or f"all {self._total_steps} steps are done: sync more total_steps to go on, or force_restart=True",
        )

    async def look_again(self) -> None:
        """Continue if the job now has more steps."""
        if self.lifecycle.state is EngineState.COMPLETE:
            async with self.turn:
                await self._rest_anew_if_changed()
        # The loop may have been about to move to COMPLETE.
        self._look_again.set()

    @asynccontextmanager
    async def between_batches(self, state: EngineState, reason: str | None = None) -> AsyncGenerator[None]:
        """Put the engine into `state` while no batch is in progress, and afterwards back to rest.

        Raise IllegalTransition while a batch is in progress. The state is kept if the engine is lost inside the block.
        """
        if self.lifecycle.state not in RESTING:
            raise IllegalTransition(f"the engine is {self.lifecycle.state}: it cannot become {state} from there")
        # A loop that just finished a batch, or is about to take one, releases the lock by itself.
        async with self.turn:
            await self._move(state, reason)
            try:
                yield
            except EngineLost:
                raise
            except BaseException:
                await self._rest_after(state)
                raise
            await self._rest_after(state)

    async def save(self, *, kept: bool, is_asked: bool = False) -> Path:
        """Write a checkpoint of the current step. The caller moves the state.

        A checkpoint that a command asked for (`is_asked`) stays, whatever the job keeps. Raise CheckpointError,
        EngineLost.
        """
        began = time.monotonic()
        weights = self.lifecycle.weights
        directory = self.checkpoints.place(weights.step, kept=kept)
        try:
            if is_asked:
                await asyncio.to_thread(self.checkpoints.mark_asked, weights.step)
            async with asyncio.timeout(self.train_timeout_s):
                await self.trainer.save(directory)
        except TimeoutError as error:
            raise CheckpointError(f"{directory}: not written within {self.train_timeout_s:.0f} s") from error
        except OSError as error:
            raise CheckpointError(f"{directory}: cannot be written: {error.strerror}") from error
        finally:
            # A failed attempt took time as well, so it is not repeated sooner than a successful one.
            self._unsaved_s, self._save_s = 0.0, time.monotonic() - began
        await asyncio.to_thread(self.checkpoints.prune)
        await self._remove_outdated()
        detail = {"step": weights.step, "path": str(directory), "kept": kept, "seconds": self._save_s}
        await self._persist(lambda: self.ledger.record_event("checkpoint.saved", detail))
        logger.info("checkpoint of step %d: %s", weights.step, directory)
        return directory

    async def _remove_outdated(self) -> None:
        """Remove the `save_freq` checkpoints that the job does not keep. Those without a verdict yet stay."""
        retention = Retention.of(self.job.at(self.lifecycle.weights.step))
        if retention is None:
            return
        values: dict[int, float | None] = {}
        try:
            for step in await asyncio.to_thread(self.checkpoints.scheduled_steps):
                found = await self.ledger.trained_batches(step - 1, 1)
                values[step] = found[0].metrics.get(retention.metric) if found and found[0].step == step else None
        except LedgerError as error:
            logger.error("checkpoints are not pruned: %s", error.message)
            return
        if retention.best and all(value is None for value in values.values()):
            logger.warning("no step has the metric %r: keep_best keeps the newest", retention.metric)
        for step in retention.outdated(values):
            await asyncio.to_thread(self.checkpoints.remove_scheduled, step)

    @property
    def _done(self) -> bool:
        return self._total_steps is not None and self.lifecycle.weights.step >= self._total_steps

    @property
    def _total_steps(self) -> int | None:
        return self.job.at(self.lifecycle.weights.step + 1).total_steps

    async def _until_due(self) -> None:
        """Wait until the job has steps left and a batch may be taken, or until it may have more steps."""
        reasons: list[Awaitable[object]] = [self._look_again.wait()]
        if not self._done:
            reasons.append(self._until_batch_may_be_taken())
        await self._unless_interrupted(*reasons)
        self._look_again.clear()

    @property
    def _may_take_batch(self) -> bool:
        is_ready = self._may_supervise if self._is_supervised else self.source.is_batch_ready()
        return not self._done and self.evaluations.present is None and is_ready

    @property
    def _is_supervised(self) -> bool:
        """True if the next step trains on demonstrations alone, and so needs no episodes."""
        step = self.lifecycle.weights.step + 1
        return self.job.at(step).is_supervised(step)

    @property
    def _may_supervise(self) -> bool:
        """True unless the first step waits for a client, which may score the model before it asks for an episode."""
        return self.lifecycle.weights.step > 0 or self.source.is_asked()

    async def _until_batch_may_be_taken(self) -> None:
        await self.evaluations.closed()
        if not self._is_supervised:
            await self.source.until_batch_ready()
        elif not self._may_supervise:
            await self.source.until_asked()

    async def _unless_interrupted(self, *reasons: Awaitable[object]) -> None:
        """Wait for the first of `reasons` or an interruption."""
        tasks = [asyncio.ensure_future(each) for each in (*reasons, self._interrupted.wait())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()

    async def _rest_anew_if_changed(self) -> None:
        """Put the engine to rest again if it went back, has more steps now, or ends with the current step."""
        state = self.lifecycle.state
        if state is EngineState.BOOTING or (state in RESTING and (state is EngineState.COMPLETE) != self._done):
            await self.rest()

    async def _rest_after(self, state: EngineState) -> None:
        if self.lifecycle.state is state:
            await self.rest()
            # With older weights, the job has steps left that it had already done.
            self._look_again.set()

    def repairs(self, error: WeightsNotFinite) -> bool:
        """Return whether the loop will go back to weights that can be sampled from, as the guard decides."""
        is_repaired = self.guard.takes_up(error, self.lifecycle.weights.step)
        if is_repaired:
            self._guarded_step = -1
            self._look_again.set()
        return is_repaired

    async def _take_batch(self, go_back: GoBack) -> None:
        await self._move(EngineState.DRAINING)
        began = time.monotonic()
        if not self.source.policy.max_staleness and not self._is_supervised:
            await self._unless_interrupted(self._drain())
        if self._interrupted.is_set():
            return
        closed = await self._close_batch(self.lifecycle.weights.step + 1)
        if closed is not None:
            await self._step(closed, time.monotonic() - began, go_back)
        if not self._interrupted.is_set():
            await self.rest()

    async def _drain(self) -> None:
        limit_s = self.source.policy.drain_timeout_s
        if not await self.source.drained(limit_s):
            logger.warning("train episodes still run after %.0f s: closing the batch without them", limit_s)

    async def _step(self, closed: ClosedBatch, drain_s: float, go_back: GoBack) -> None:
        await self._persist(lambda: self._record_closed(closed))
        self.source.confirm(closed.batch)
        if not closed.batch.groups and not self._is_supervised:
            logger.warning(
                "no group of the batch survived: nothing to train (%d episodes dropped)", len(closed.dropped)
            )
            await self._take_back(closed.batch, "nothing_survived")
            return
        await self._move(EngineState.TRAINING)
        began = time.monotonic()
        report = await self._train(closed.batch)
        self._unsaved_s += time.monotonic() - began
        if report is not None:
            await self._publish(closed, report, drain_s)
            if not await self._follow_guard(go_back):
                await self._save_if_due(report.step)

    async def _close_batch(self, step: int) -> ClosedBatch | None:
        """Close the batch of a step and return it, or None if the job was shortened before this step.

        The settings of the batch are fixed here: a change is on record before, or applies to a later step.
        """
        async with self.job.closing:
            if self._done:
                return None
            batch_id = f"batch-{uuid.uuid4().hex[:12]}"
            if self._is_supervised:
                closed = ClosedBatch(TrainBatch(batch_id, step, ()), ())
                self.source.fill(step + 1)
            else:
                closed = self.source.close_batch(batch_id=batch_id, step=step)
            settings = self.job.timeline.settings_of(step)
        batch = replace(closed.batch, settings=settings)
        return replace(closed, batch=self.supervision.complete(batch, self.job.at(step)))

    async def _record_closed(self, closed: ClosedBatch) -> None:
        batch = closed.batch
        await self.ledger.close_batch(
            batch.batch_id,
            batch.step,
            [[episode.episode_id for episode in group.members] for group in batch.groups],
            [(drop.episode_id, drop.reason) for drop in closed.dropped],
            batch.settings,
        )

    async def _train(self, batch: TrainBatch) -> StepReport | None:
        try:
            async with asyncio.timeout(self.train_timeout_s + TIMEOUT_GRACE_S):
                report = await self.trainer.train(batch)
        except TimeoutError as error:
            # The step may still finish in the trainer: to continue now would train the batch twice.
            reason = f"training step {batch.step} took longer than {self.train_timeout_s:.0f} s"
            await self.ledger.fail_batch(batch.batch_id, reason)
            raise EngineFailure(reason) from error
        except EngineLost as error:
            await self._take_back(batch, error.message)
            raise
        except SwarmError as error:
            await self._take_back(batch, error.message)
            self._failures += 1
            logger.error("step %d failed (%d in a row): %s", batch.step, self._failures, error.message)
            if self._failures >= MAX_CONSECUTIVE_FAILURES:
                raise EngineFailure(
                    f"{self._failures} training steps failed in a row; the last one: {error.message}"
                ) from error
            return None
        self._failures = 0
        return report

    async def _take_back(self, batch: TrainBatch, reason: str) -> None:
        """Return the members of a batch that was not trained to the pool, for the next batch."""
        await self._persist(lambda: self.ledger.fail_batch(batch.batch_id, reason))
        self.source.take_back(batch.members)

    async def _publish(self, closed: ClosedBatch, report: StepReport, drain_s: float) -> None:
        metrics = {**report.metrics, **batch_metrics(closed, drain_s)}
        await self._persist(lambda: self.ledger.finish_batch(replace(report, metrics=metrics)))
        self.last_metrics = metrics
        self.lifecycle.publish(report.weight_version)
        self.source.publish(report.weight_version.version)
        logger.info("step %d: version %d, %s", report.step, report.weight_version.version, _headline(metrics))

    def _show_score(self, score: EvaluationRow) -> None:
        """Show the score among the latest metrics. The ledger has already added it to the metrics of its step."""
        if score.step == self.lifecycle.weights.step and score.step > 0:
            self.last_metrics = {**self.last_metrics, **score.metrics}

    async def _follow_guard(self, go_back: GoBack) -> bool:
        """Do what follows from a fault at the present step, if there is one. Return whether the weights changed."""
        self._guarded_step = self.lifecycle.weights.step
        answer = await self.guard.answer(self._guarded_step)
        if answer is None:
            return False

        async def record() -> None:
            await self.job.take_over(answer.timeline, lambda: self._persist(lambda: self.guard.record(answer)))

        try:
            if answer.back_to is None:
                await record()
            else:
                await self._move(EngineState.BOOTING, answer.line)
                await go_back(answer.back_to, record)
        except (CheckpointError, RevisionConflict) as error:
            # It is tried again after the next step.
            logger.error("guard: %s It could not be carried out: %s", answer.line, error.message)
            return False
        self.guard.note(answer)
        return answer.back_to is not None

    async def _persist(self, write: Callable[[], Awaitable[None]]) -> None:
        """Write to the ledger, and retry while the disk is full: no other copy of this batch exists.

        Raise LedgerUnwritable after LEDGER_PATIENCE_S seconds.
        """
        give_up_at = time.monotonic() + LEDGER_PATIENCE_S
        while True:
            try:
                await write()
            except LedgerUnwritable as error:
                if time.monotonic() > give_up_at:
                    raise
                logger.error("training waits: %s", error.message)
                await asyncio.sleep(LEDGER_RETRY_S)
            else:
                return

    async def _move(self, state: EngineState, reason: str | None = None) -> None:
        try:
            await self.lifecycle.move(state, reason)
        except LedgerUnwritable as error:
            # The transition itself is done. After a crash an older state of the same run is on record, which is enough.
            logger.error("the engine is %s, which could not be recorded: %s", state, error.message)

    async def _save_if_due(self, step: int) -> None:
        save_freq = self.job.at(step).save_freq
        kept = bool(save_freq) and step % save_freq == 0
        if not kept and self._unsaved_s * self.recovery_overhead < self._save_s:
            return
        await self._move(EngineState.EXPORTING)
        try:
            await self.save(kept=kept)
        except CheckpointError as error:
            # Training does not depend on it: the step itself is already durable in the ledger.
            logger.error("checkpoint of step %d failed: %s", step, error.message)


def _headline(metrics: dict[str, float]) -> str:
    shown = ("critic/score/mean", "sft/loss", "sft/held_out_loss", "actor/pg_loss", "actor/grad_norm", "actor/entropy")
    return ", ".join(f"{name} {metrics[name]:.4g}" for name in shown if name in metrics)
