"""What a trainer must do: one sealed batch in, the next weight version published to its engine.

Place in the flow: loop.py calls `train` when a batch is sealed. Implemented by `fake` and `local`; a trainer knows
nothing of HTTP, of clients, or of how episodes were admitted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from swarm.types import StepReport, TrainBatch, WeightVersion


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
