"""The estimate of a training: time, memory, disk, tokens and money, from trainings of the same kind or from steps."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from swarm.cli.train.training_folder import RECORD, TrainingRecord, read_record

if TYPE_CHECKING:
    from pathlib import Path

    from swarm.cli.train.measurement import MeasuredTraining
    from swarm.job import TrainJob
    from swarm.prices import Prices

NOT_OF_USE = frozenset(
    {"project_name", "experiment_name", "seed", "total_steps", "lr", "lr_warmup_steps", "lr_scheduler_type"}
    | {"min_lr_ratio", "weight_decay", "betas", "grad_clip", "guard", "save_freq", "keep_last", "keep_best"}
    | {"keep_best_metric", "clip_ratio", "clip_ratio_low", "clip_ratio_high", "clip_ratio_c", "kl_loss_coef"}
)
"""The settings that change neither the time of a step nor its memory. Trainings may differ in them and be alike."""
MOST_LIKE = 5
"""The newest of the like trainings that an estimate reads."""


@dataclass(frozen=True, slots=True)
class WorkAhead:
    """The work that a command still has to do: steps by reward, attempts of all its scores, and supervised steps."""

    steps: int
    attempts: int
    sft_steps: int = 0


@dataclass(frozen=True, slots=True)
class TrainingEstimate:
    """The time, memory, disk, tokens and money that a training will take. `source` says from what they are known.

    A figure without a measurement is None. `seconds` is the time of the whole command. `steps` and `tokens` leave
    supervised steps out. `memory` and `disk` are in bytes. `money` is in the currency of the prices.
    """

    source: str
    steps: int
    seconds_per_step: float | None
    seconds: float | None
    memory: int | None
    disk: int | None
    tokens: int | None
    money: float | None = None
    sft_steps: int = 0
    seconds_per_sft_step: float | None = None

    @property
    def text(self) -> str:
        """The estimate in one line."""
        parts: list[str] = []
        if self.seconds_per_sft_step is not None:
            parts.append(f"{self.sft_steps} supervised steps of {describe_seconds(self.seconds_per_sft_step)}")
        if self.seconds_per_step is not None:
            parts.append(f"{self.steps} steps of {describe_seconds(self.seconds_per_step)}")
        if self.seconds is not None:
            parts = [f"{describe_seconds(self.seconds)} in all ({', '.join(parts)})"]
        if self.memory is not None:
            parts.append(f"{describe_bytes(self.memory)} of memory at the peak")
        if self.disk is not None:
            parts.append(f"{describe_bytes(self.disk)} on disk")
        if self.tokens is not None:
            parts.append(f"{self.tokens:,} tokens")
        if self.money is not None:
            parts.append(f"{self.money:,.4g} of money")
        return f"{', '.join(parts)}; from {self.source}"

    def figures(self) -> dict[str, Any]:
        return asdict(self)


def estimate_training(
    measured: Sequence[MeasuredTraining], ahead: WorkAhead, job: TrainJob, source: str, prices: Prices | None
) -> TrainingEstimate:
    """Return the estimate of the work ahead from at least one measurement."""
    step_s, sft_step_s, attempt_s = (
        _mean(getattr(each, name) for each in measured) for name in ("step_s", "sft_step_s", "attempt_s")
    )
    amounts = ((ahead.steps, step_s), (ahead.sft_steps, sft_step_s), (ahead.attempts, attempt_s))
    work_s = _sum_of(amounts)
    seconds = None if work_s is None else statistics.fmean(each.other_s for each in measured) + work_s
    per_step, per_attempt = (
        _mean(getattr(each, name) for each in measured) for name in ("tokens_per_step", "tokens_per_attempt")
    )
    tokens = _sum_of(((ahead.steps, per_step), (ahead.attempts, per_attempt)))
    checkpoint, record = _mean(each.checkpoint for each in measured), _mean(each.record for each in measured)
    memory, all_steps = _mean(each.memory for each in measured), ahead.steps + ahead.sft_steps
    return TrainingEstimate(
        source=source,
        steps=ahead.steps,
        seconds_per_step=step_s if ahead.steps else None,
        seconds=seconds,
        memory=None if memory is None else round(memory),
        disk=None if record is None else round(record * all_steps + (checkpoint or 0.0) * _checkpoints(job)),
        tokens=None if tokens is None else round(tokens),
        money=None if prices is None or seconds is None else prices.of_hours(seconds / 3600, job.n_gpu),
        sft_steps=ahead.sft_steps,
        seconds_per_sft_step=sft_step_s if ahead.sft_steps else None,
    )


def _sum_of(amounts: Iterable[tuple[int, float | None]]) -> float | None:
    """Return the sum of the products, None if a factor of something that there is was not measured."""
    total = 0.0
    for number, each in amounts:
        if number and each is None:
            return None
        total += number * (each or 0.0)
    return total


def find_like(trainings: Path, wanted: TrainingRecord, *, workers: int, cores: int) -> list[MeasuredTraining]:
    """Return the measurements of the newest like trainings in the folders of `trainings`.

    They have the same model, environment, program and settings of `job` that matter, on as many cores.
    """
    found: list[tuple[float, MeasuredTraining]] = []
    for path in trainings.glob(f"*/{RECORD}"):
        record = read_record(path)
        if record is None or record.took is None or not _are_alike(record, wanted):
            continue
        if (record.took.workers, record.took.cores) == (workers, cores):
            found.append((path.stat().st_mtime, record.took))
    newest = sorted(found, key=lambda item: item[0], reverse=True)[:MOST_LIKE]
    return [measured for _, measured in newest]


def describe_like(number: int) -> str:
    return f"{number} like training{'s' if number > 1 else ''} on record"


def _are_alike(one: TrainingRecord, other: TrainingRecord) -> bool:
    return _kind(one) == _kind(other)


def _kind(record: TrainingRecord) -> tuple[Any, ...]:
    settings = record.job.resolve().model_dump(mode="json", exclude=set(NOT_OF_USE))
    played = tuple(each and each.digest for each in (record.environment, record.program))
    return *played, record.model_files, settings


def _checkpoints(job: TrainJob) -> int:
    """Return how many checkpoints a run has at its end: those that are kept, and the last one."""
    saved = (job.total_steps or 0) // job.save_freq if job.save_freq else 0
    kept = saved if job.keep_last is None else min(saved, job.keep_last + job.keep_best)
    return kept + (1 if not job.save_freq or (job.total_steps or 0) % job.save_freq else 0)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def describe_seconds(seconds: float) -> str:
    if seconds < 10:
        return f"{seconds:.2g} s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"


def describe_bytes(amount: float) -> str:
    return f"{amount / 1e9:.1f} GB" if amount >= 1e9 else f"{amount / 1e6:.1f} MB"
