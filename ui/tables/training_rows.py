"""Trainings as rows: the values that one can filter, sort, group and compare them by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments_db import RecordedTraining
from ui import differences, formats
from ui.curves.series import Member, Series
from ui.tables.filters import ListedItem

REWARD, HELD_OUT, TRUE_GRADE = "critic/score/mean", "eval/mean", "batch/success_rate"
"""The names of metrics. Arms with different training rewards can be compared by the last one."""

OVER = frozenset({"COMPLETE", "REPLACED", "FAILED", "OFFLINE"})
EARLY = OVER - {"COMPLETE"}
BASICS = (
    "name",
    "project",
    "experiment",
    "status",
    "step",
    "reward",
    "score",
    "model",
    "engine",
    "tag",
    "note",
    "home",
)
"""The names that every training has, beside those of its settings and metrics."""

NAMING = frozenset(differences.NAMING)


@dataclass(frozen=True, slots=True)
class ListedTraining(ListedItem):
    """A training with `BASICS`, its settings by dotted name, and the last values of its metrics."""

    training: RecordedTraining


def name_of(training: RecordedTraining) -> str:
    return f"{training.project}/{training.experiment}"


def settings_of(training: RecordedTraining) -> dict[str, Any]:
    """Return the settings by dotted name, without those that only name the training."""
    flat = differences.flatten(training.settings)
    return {name: value for name, value in flat.items() if name not in NAMING - {"seed"}}


def rows_of(
    trainings: Iterable[RecordedTraining], metrics: Mapping[str, Mapping[str, float | None]]
) -> list[ListedTraining]:
    """Return a row for each training. `metrics` has the last values by training and name."""
    rows: list[ListedTraining] = []
    for training in trainings:
        last = metrics.get(training.id, {})
        basics: dict[str, Any] = {
            "name": name_of(training), "project": training.project, "experiment": training.experiment,
            "status": training.status.lower(), "step": training.step, "reward": last.get(REWARD),
            "score": last.get(HELD_OUT), "model": training.model, "engine": training.engine, "tag": training.tags,
            "note": training.note, "home": training.home,
        }  # fmt: skip
        values = {**last, **settings_of(training), **basics}
        rows.append(ListedTraining(training.id, name_of(training), values, training))
    return rows


def member_of(training: RecordedTraining) -> Member:
    """Return the training as a part of a series. One that is over before its last step ended early."""
    last = training.settings.get("total_steps")
    is_short = training.status in EARLY and isinstance(last, int) and training.step < last
    why = f"{training.status.lower()}: {training.reason}" if training.reason else training.status.lower()
    return Member(training.id, training.begun_at, formats.shortened(formats.printable(why), 120) if is_short else "")


def series_of(rows: Sequence[ListedTraining]) -> list[Series]:
    """Return one series for each training, with labels that tell them apart."""
    titles = [formats.printable(row.title) for row in rows]
    labels = [
        title if titles.count(title) == 1 else f"{title} · {formats.moment(row.training.begun_at)}"
        for title, row in zip(titles, rows, strict=True)
    ]
    return [
        Series(label if labels.count(label) == 1 else f"{label} · {row.training.id[-6:]}", (member_of(row.training),))
        for label, row in zip(labels, rows, strict=True)
    ]
