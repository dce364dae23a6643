"""The training loop: wait for a full batch, drain, seal, step, publish; again until the job is done.

Place in the flow: between pool and trainer, started by server.py. It moves the engine's state and writes batches to the
ledger. It knows nothing of HTTP, of episodes' leases, or of how a step is computed.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from swarm.batch import BatchPool, SealedBatch
from swarm.config import TrainJob
from swarm.engine.state import EngineLifecycle
from swarm.errors import CheckpointError, EngineFailure, SwarmError
from swarm.ledger import Ledger
from swarm.schemas import EngineState
from swarm.trainer.base import Trainer
from swarm.types import StepReport

logger = logging.getLogger(__name__)

MAX_CONSECUTIVE_FAILURES = 3

Drain = Callable[[float], Awaitable[bool]]
"""Waits until no train episode runs, at most so many seconds; False if some still do."""


@dataclass(slots=True)
class TrainLoop:
    """One job's loop. `run` returns when `total_steps` are done and raises EngineFailure when training cannot go on."""

    job: TrainJob
    trainer: Trainer
    pool: BatchPool
    ledger: Ledger
    lifecycle: EngineLifecycle
    batch_ready: asyncio.Event
    drain: Drain
    checkpoint_directory: Callable[[int], Path]
    train_timeout_s: float
    last_metrics: dict[str, float] = field(default_factory=dict[str, float])
    _failures: int = 0

    async def run(self) -> None:
        while not self._done:
            await self.batch_ready.wait()
            self.batch_ready.clear()
            if not self.pool.ready:
                continue
            await self.lifecycle.move(EngineState.DRAINING)
            drained_from = time.monotonic()
            if not await self.drain(self.job.drain_timeout_s):
                logger.warning("train episodes still run after %.0f s: sealing without them", self.job.drain_timeout_s)
            await self._step(drain_s=time.monotonic() - drained_from)
            await self.lifecycle.move(EngineState.ROLLING)
            if self.pool.ready:
                self.batch_ready.set()

    async def save(self) -> Path:
        """Write a checkpoint of the present step. Raises CheckpointError. The caller has moved the state."""
        directory = self.checkpoint_directory(self.lifecycle.weights.step)
        async with asyncio.timeout(self.train_timeout_s):
            await self.trainer.save(directory)
        logger.info("checkpoint of step %d: %s", self.lifecycle.weights.step, directory)
        return directory

    @property
    def _done(self) -> bool:
        return self.job.total_steps is not None and self.lifecycle.weights.step >= self.job.total_steps

    async def _step(self, drain_s: float) -> None:
        sealed = self.pool.seal(batch_id=f"batch-{uuid.uuid4().hex[:12]}", step=self.lifecycle.weights.step + 1)
        await self.ledger.seal_batch(
            sealed.batch.batch_id,
            sealed.batch.step,
            [episode.episode_id for episode in sealed.batch.episodes],
            [(drop.episode_id, drop.reason) for drop in sealed.dropped],
        )
        if not sealed.batch.groups:
            logger.warning(
                "no group of the batch survived: nothing to train (%d episodes dropped)", len(sealed.dropped)
            )
            await self.ledger.fail_batch(sealed.batch.batch_id, "nothing_survived")
            return
        await self.lifecycle.move(EngineState.TRAINING)
        report = await self._train(sealed)
        if report is not None:
            await self._publish(sealed, report, drain_s)

    async def _train(self, sealed: SealedBatch) -> StepReport | None:
        batch = sealed.batch
        try:
            async with asyncio.timeout(self.train_timeout_s):
                report = await self.trainer.train(batch)
        except TimeoutError as error:
            # The step may still finish behind our back: training on would use the batch twice.
            reason = f"training step {batch.step} took longer than {self.train_timeout_s:.0f} s"
            await self.ledger.fail_batch(batch.batch_id, reason)
            raise EngineFailure(reason) from error
        except SwarmError as error:
            await self.ledger.fail_batch(batch.batch_id, error.message)
            self._failures += 1
            logger.error("step %d failed (%d in a row): %s", batch.step, self._failures, error.message)
            if self._failures >= MAX_CONSECUTIVE_FAILURES:
                raise EngineFailure(
                    f"{self._failures} training steps failed in a row; the last one: {error.message}"
                ) from error
            self.pool.restore(batch.episodes)
            return None
        self._failures = 0
        return report

    async def _publish(self, sealed: SealedBatch, report: StepReport, drain_s: float) -> None:
        lost = sum(drop.trained_tokens for drop in sealed.dropped)
        metrics = {
            **report.metrics,
            "batch/episodes": float(len(sealed.batch.episodes)),
            "batch/groups": float(len(sealed.batch.groups)),
            "batch/dropped_episodes": float(len(sealed.dropped)),
            "batch/dropped_tokens": float(lost),
            "timing/drain_s": drain_s,
        }
        await self.ledger.finish_batch(replace(report, metrics=metrics))
        self.last_metrics = metrics
        self.lifecycle.publish(report.weight_version)
        self.pool.publish(report.weight_version.version)
        logger.info("step %d: version %d, %s", report.step, report.weight_version.version, _headline(metrics))
        if self.job.save_freq and report.step % self.job.save_freq == 0:
            await self.lifecycle.move(EngineState.EXPORTING)
            try:
                await self.save()
            except (CheckpointError, TimeoutError) as error:
                # Training does not depend on it; the step itself is already durable in the ledger.
                logger.error("checkpoint of step %d failed: %s", report.step, error)


def _headline(metrics: dict[str, float]) -> str:
    shown = ("critic/score/mean", "actor/pg_loss", "actor/grad_norm", "actor/entropy")
    return ", ".join(f"{name} {metrics[name]:.4g}" for name in shown if name in metrics)
