"""The demonstrations of a run, and which of them each step trains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from swarm.errors import EngineFailure
from swarm.job import TrainJob
from swarm.trainer.schedule import draw_demonstrations, measures_held_out, split_demonstrations
from swarm.types import FinishedEpisode, TrainBatch


@dataclass(frozen=True, slots=True)
class Supervision:
    """The encoded demonstrations of a run: those to train on, and those held out.

    What a step trains follows from the job and the number of the step alone, so a replayed step trains the same.
    """

    trained: tuple[FinishedEpisode, ...] = ()
    held_out: tuple[FinishedEpisode, ...] = ()

    @classmethod
    def of(cls, job: TrainJob, demonstrations: Sequence[FinishedEpisode]) -> Supervision:
        """Return the supervision of a resolved job."""
        trained, held_out = split_demonstrations(len(demonstrations), job)
        return cls(
            tuple(demonstrations[number] for number in trained), tuple(demonstrations[number] for number in held_out)
        )

    def require_within(self, context_length: int) -> None:
        """Raise EngineFailure if a demonstration is longer than the context of the model."""
        for each in (*self.trained, *self.held_out):
            longest = max(len(sample.token_ids_T) for sample in each.samples)
            if longest > context_length:
                raise EngineFailure(
                    f"{each.task_id} has {longest} tokens and the context of the model {context_length}: shorten it, or"
                    " leave it out"
                )

    def complete(self, batch: TrainBatch, job: TrainJob) -> TrainBatch:
        """Return the batch with the demonstrations of its step; `job` is that of the step."""
        if not job.reads_demonstrations(batch.step):
            return batch
        drawn = draw_demonstrations(len(self.trained), job, batch.step)
        return replace(
            batch,
            demonstrations=tuple(self.trained[number] for number in drawn),
            held_out=self.held_out if measures_held_out(job, batch.step) else (),
        )
