"""The way to the weights of a given step: the newest usable checkpoint, then the batches since, trained again."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path

from swarm.errors import CheckpointError, EngineFailure, NotFound, SwarmError
from swarm.ledger import BatchRow, Ledger
from swarm.sampler import EngineLost
from swarm.trainer.base import Trainer
from swarm.trainer.checkpoint_files import verify_checkpoint
from swarm.trainer.checkpoints import RunCheckpoints, step_of
from swarm.types import TrainBatch, WeightVersion

logger = logging.getLogger(__name__)

ReadBatch = Callable[[BatchRow], Awaitable[TrainBatch]]
"""Function that reads a trained batch from the ledger, with groups and episodes in their order of training. Raises
ValueError if the record of an episode is incomplete."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """Result of a recovery: the weights now served, the number of batches trained again, and the seconds it took.

    `wanted_step` is the requested step. The weights are those of an earlier step if some batches could not be replayed.
    """

    weights: WeightVersion
    wanted_step: int
    replayed: int
    replay_s: float


@dataclass(frozen=True, slots=True)
class Recovery:
    """Recovery of the weights of a step.

    `train_timeout_s` bounds the replay of one batch. `job_id` names the run; None is the newest. `resume_from` is the
    checkpoint that the run began at, at the step `initial_step`. Without one, it began with its model at step 0.
    """

    ledger: Ledger
    trainer: Trainer
    checkpoints: RunCheckpoints
    read_batch: ReadBatch
    train_timeout_s: float
    job_id: int | None = None
    resume_from: Path | None = None
    initial_step: int = 0

    async def restore(self, step: int) -> Recovered:
        """Bring the weights of a freshly started engine to `step`.

        A batch that cannot be replayed ends the replay, and the ledger is rewound to the step that was reached. Raise
        EngineLost if the engine dies meanwhile, and LedgerError.
        """
        recovered = await self.reach(step)
        weights = recovered.weights
        if weights.step < step:
            logger.error("the weights of step %d cannot be restored: going on from step %d", step, weights.step)
            self.checkpoints.set_aside(weights.step)
            await self.ledger.rewind(weights.step, f"the weights of step {step} could not be restored")
        elif recovered.replayed:
            logger.info("replayed %d batches up to step %d", recovered.replayed, weights.step)
        return recovered

    async def reach(self, step: int) -> Recovered:
        """Restore like `restore`, but leave the ledger unchanged whichever step is reached."""
        weights = await self._load_newest(step)
        began = time.monotonic()
        replayed = 0
        for row in await self.ledger.trained_batches(weights.step, job_id=self.job_id):
            if row.step > step:
                break
            try:
                weights = await self._replay(row, weights)
            except EngineLost:
                raise
            except (EngineFailure, ValueError) as error:
                logger.error("step %d cannot be replayed, its weights are lost: %s", row.step, error)
                break
            replayed += 1
        return Recovered(weights, step, replayed, time.monotonic() - began)

    async def require_way_to(self, step: int) -> None:
        """Raise NotFound if the weights of a step can neither be loaded nor replayed from the ledger.

        Raise CheckpointError if the run's own checkpoints begin later, and `resume_from` is not whole any more.
        """
        if step < self.initial_step:
            raise NotFound(
                f"this run began at step {self.initial_step}, with resume_from: it cannot go to step {step}",
                param="step",
            )
        newest = next(iter(self.checkpoints.candidates(step)), None)
        start = self.initial_step if newest is None else step_of(newest) or 0
        if newest is None and self.resume_from is not None:
            await asyncio.to_thread(verify_checkpoint, self.resume_from)
        lost = await self.ledger.first_step_without_tokens(start, step)
        if lost is not None:
            steps = sorted({step_of(path) or 0 for path in self.checkpoints.newest_first()})
            raise NotFound(
                f"step {step} cannot be rebuilt: `swarm gc` deleted the tokens of step {lost}; there are"
                f" checkpoints of {', '.join(map(str, steps)) or 'no step'}",
                param="step",
            )

    async def _load_newest(self, step: int) -> WeightVersion:
        """Load the newest usable checkpoint, or the one that the run began at, or keep the base model, step 0.

        Raise EngineLost, and CheckpointError if the checkpoint that the run began at cannot be loaded.
        """
        for directory in self.checkpoints.candidates(step):
            try:
                weights = await self.trainer.load(directory)
            except CheckpointError as error:
                logger.warning("checkpoint skipped: %s", error.message)
                continue
            logger.info("loaded %s (step %d)", directory, weights.step)
            return weights
        if self.resume_from is not None:
            return await self._load_initial(self.resume_from)
        return WeightVersion(version=0, step=0, published_at=time.time())

    async def _load_initial(self, directory: Path) -> WeightVersion:
        """Load the checkpoint that the run began at. Raise CheckpointError unless it still has that step."""
        try:
            weights = await self.trainer.load(directory)
        except CheckpointError as error:
            raise CheckpointError(f"resume_from: {error.message}; the run begins there and has none later") from error
        if weights.step != self.initial_step:
            raise CheckpointError(
                f"resume_from: checkpoint {directory} is of step {weights.step} now, and the run began at step"
                f" {self.initial_step}: put the earlier one back, or begin another run"
            )
        logger.info("began at %s (step %d)", directory, weights.step)
        return weights

    async def _replay(self, row: BatchRow, weights: WeightVersion) -> WeightVersion:
        if row.step != weights.step + 1:
            raise ValueError(f"no batch of step {weights.step + 1} is on record")
        batch = await self.read_batch(row)
        try:
            async with asyncio.timeout(self.train_timeout_s):
                report = await self.trainer.train(batch)
        except TimeoutError as error:
            raise EngineFailure(f"it took longer than {self.train_timeout_s:.0f} s") from error
        except EngineFailure:
            raise
        except SwarmError as error:
            raise EngineFailure(error.message) from error
        if row.weight_version is not None and report.weight_version.version != row.weight_version:
            logger.warning(
                "step %d was version %d, its replay is %d", row.step, row.weight_version, report.weight_version.version
            )
        return replace(report.weight_version, published_at=row.finished_at or time.time())
