"""The expected use of one training: from like trainings on record, or from its own first steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from swarm.cli.train.estimate import TrainingEstimate, WorkAhead, describe_like, estimate_training, find_like
from swarm.cli.train.measurement import LEAST_STEPS, MeasuredTraining, TrainingMeter, available_cores
from swarm.cli.train.training_folder import TrainingFolder, TrainingRecord

if TYPE_CHECKING:
    from swarm.client import SwarmClient
    from swarm.job import TrainJob
    from swarm.prices import Prices


@dataclass(frozen=True, slots=True)
class Expectation:
    """The work ahead of a command on a training, and the trainings on record that are like it.

    `prices` may be unknown.
    """

    job: TrainJob
    ahead: WorkAhead
    like: tuple[MeasuredTraining, ...]
    prices: Prices | None

    def by_record(self) -> TrainingEstimate | None:
        """Return the estimate from like trainings; None without one."""
        if not self.like or not self.ahead.steps + self.ahead.sft_steps:
            return None
        return estimate_training(self.like, self.ahead, self.job, describe_like(len(self.like)), self.prices)

    def by_steps(self, measured: MeasuredTraining) -> TrainingEstimate:
        """Return the estimate from some steps that were measured."""
        kind = "steps" if measured.steps else "supervised steps"
        number = measured.steps or min(self.job.sft_steps, LEAST_STEPS)
        return estimate_training([measured], self.ahead, self.job, f"{number} {kind}", self.prices)

    def show(self) -> None:
        """Print the estimate from the record to stderr, if there is one."""
        if (estimate := self.by_record()) is not None:
            typer.echo(f"expected: {estimate.text}", err=True)

    def keep(self, took: MeasuredTraining, folder: TrainingFolder, *, is_own: bool) -> dict[str, Any]:
        """Record what the training used, if its server was the command's own, and return the figures."""
        if is_own and (record := folder.read()) is not None:
            folder.write(record.model_copy(update={"took": took}))
        money = {} if self.prices is None else {"money": self.prices.of_hours(took.seconds / 3600, self.job.n_gpu)}
        return {**took.model_dump(), **money}


def expect(
    directory: Path,
    record: TrainingRecord,
    job: TrainJob,
    *,
    step: int,
    initial_step: int,
    tasks: int,
    ks: Sequence[int],
    eval_every: int | None,
    workers: int,
    prices: Prices | None,
    has_own_server: bool = True,
) -> Expectation:
    """Return what lies ahead of a training in `directory` that is at `step` of the job and began at `initial_step`.

    Scores are of `tasks` tasks, the one before with attempts for the largest of `ks`. `workers` attempts are made at
    the same time. Like trainings count only if this machine trains.
    """
    trainings, total = directory.absolute().parent, job.total_steps or 0
    like = find_like(trainings, record, workers=workers, cores=available_cores()) if has_own_server else []
    between = 0 if eval_every is None else max(0, (total - 1) // eval_every - step // eval_every)
    has_base = step > initial_step or _has_base(trainings, record, tasks, ks, has_own_server)
    scores = between + 1 + (0 if has_base else max(ks))
    # Demonstrations are scored if reward follows.
    scores += 1 if step < job.sft_steps < total else 0
    sft_steps = max(0, job.sft_steps - step)
    ahead = WorkAhead(max(0, total - step - sft_steps), scores * tasks, sft_steps)
    return Expectation(job, ahead, tuple(like), prices)


def _has_base(trainings: Path, record: TrainingRecord, tasks: int, ks: Sequence[int], has_own_server: bool) -> bool:
    """Return whether the score before the first step is known and need not be measured."""
    from swarm.cli.train.scores import remembered_score

    if record.base_score is not None and record.base_score.attempts >= max(ks):
        return True
    remembered = remembered_score(trainings, record, tasks, ks) if has_own_server else None
    return remembered is not None and remembered.find() is not None


def step_printer(
    client: SwarmClient, meter: TrainingMeter, expected: Expectation, begun_at: int
) -> Callable[[int, str], None]:
    """Return a function that prints each step, and once what the training takes, unless the record has said so."""
    is_told = bool(expected.like)

    def show(step: int, description: str) -> None:
        nonlocal is_told
        show_step(step, description)
        trained = step - begun_at - expected.ahead.sft_steps
        if is_told or not meter.has_enough(trained) or trained >= expected.ahead.steps:
            return
        is_told = True
        if (measured := meter.read(client, begun_at, step)) is not None:
            typer.echo(f"expected: {expected.by_steps(measured).text}", err=True)

    return show


def show_step(step: int, description: str) -> None:
    typer.echo(f"step {step:4d}  {description}", err=True)
