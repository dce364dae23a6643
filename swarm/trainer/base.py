"""What the training loop stands between: a source of batches, and a trainer that makes weights of them.

Place in the flow: loop.py awaits a batch from the source, has the trainer train it, and tells the source of the new
version. `swarm.rollout` is the source; each backend has a trainer. Neither knows the other, HTTP or clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from swarm.batch import BatchPolicy, SealedBatch
from swarm.types import FinishedEpisode, StepReport, TrainBatch, WeightVersion


class BatchSource(Protocol):
    """Where batches come from, one after the other. Used from one event loop."""

    @property
    def policy(self) -> BatchPolicy:
        """What holds for the batch being filled."""
        ...

    def is_batch_ready(self) -> bool:
        """Whether the batch can be sealed now, by the stop rule in force or because its time is over."""
        ...

    async def until_batch_ready(self) -> None:
        """Wait until `is_batch_ready`."""
        ...

    async def drained(self, timeout_s: float) -> bool:
        """Wait until no train episode runs; False if some still do after `timeout_s` seconds."""
        ...

    def seal(self, batch_id: str, step: int) -> SealedBatch:
        """Take the batch out: what ends later belongs to another one."""
        ...

    def confirm(self, batch: TrainBatch) -> None:
        """To be told once a seal is on record: episodes of the next batch may begin."""
        ...

    def take_back(self, episodes: Sequence[FinishedEpisode]) -> None:
        """Let the episodes of a batch that was not trained, if there are any, wait for the next one, which takes its
        step."""
        ...

    def publish(self, weight_version: int) -> None:
        """To be told of every version that is served, which decides how stale an episode is."""
        ...


class Trainer(Protocol):
    """Owns the weights that the paired engine serves."""

    async def train(self, batch: TrainBatch) -> StepReport:
        """Advantages, loss, optimizer step(s), publish. On return the engine already samples with the new version.

        Raises EngineFailure if the step cannot be done; the weights are then still those of the version before.
        """
        ...

    async def save(self, directory: Path) -> None:
        """Write weights (Hugging Face layout), optimizer, RNG and step atomically. Raises CheckpointError."""
        ...

    async def load(self, directory: Path) -> WeightVersion:
        """Restore what `save` wrote and publish it. Raises CheckpointError if it is incomplete or of another model."""
        ...
