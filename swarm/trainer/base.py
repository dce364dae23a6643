"""The two sides of the training loop: a source of batches, and a trainer that turns them into weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from swarm.batch import BatchPolicy, ClosedBatch
from swarm.types import FinishedEpisode, StepReport, TrainBatch, WeightVersion


class BatchSource(Protocol):
    """Source of batches, one after the other. Used from one event loop."""

    @property
    def policy(self) -> BatchPolicy:
        """Policy of the batch that is being filled."""
        ...

    def is_batch_ready(self) -> bool:
        """Return whether the batch is complete, by the current stop rule or because its deadline has passed."""
        ...

    async def until_batch_ready(self) -> None:
        """Wait until `is_batch_ready` returns True."""
        ...

    async def drained(self, timeout_s: float) -> bool:
        """Wait until no train episode runs. Return False if some still run after `timeout_s` seconds."""
        ...

    def close_batch(self, batch_id: str, step: int) -> ClosedBatch:
        """Return the batch and close it: episodes that end later belong to the next batch."""
        ...

    def is_asked(self) -> bool:
        """Return whether somebody has asked to begin a train episode since the server started."""
        ...

    async def until_asked(self) -> None:
        """Wait until `is_asked` returns True."""
        ...

    def fill(self, step: int) -> None:
        """Collect the batch of this step from now on, under the settings of that step."""
        ...

    def confirm(self, batch: TrainBatch) -> None:
        """Allow episodes of the next batch to begin, now that the closed batch is on record."""
        ...

    def take_back(self, episodes: Sequence[FinishedEpisode]) -> None:
        """Return the episodes of a batch that was not trained to the pool, if there are any.

        They wait for the next batch, which takes the step of this one.
        """
        ...

    def publish(self, weight_version: int) -> None:
        """Record the weight version that is now served; the staleness of an episode is counted from it."""
        ...


class Trainer(Protocol):
    """Owner of the weights that the paired sampler serves."""

    async def train(self, batch: TrainBatch) -> StepReport:
        """Compute advantages and loss, update the weights, and publish them.

        When this returns, the sampler already uses the new version. Raise EngineFailure if the step fails; the weights
        are then still those of the version before.
        """
        ...

    async def save(self, directory: Path) -> None:
        """Write weights (Hugging Face layout), optimizer, RNG and step atomically. Raise CheckpointError."""
        ...

    async def load(self, directory: Path) -> WeightVersion:
        """Restore and publish the weights that `save` wrote.

        Raise CheckpointError if the checkpoint is incomplete or belongs to another model.
        """
        ...
