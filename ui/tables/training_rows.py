"""Trainings as rows: the values that one can filter, sort, group and compare them by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments_db import RecordedTraining
from ui import differences, formats
from ui.curves.series import Member, Series

REWARD, HELD_OUT = "critic/score/mean", "eval/mean"
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
class ListedTraining:
    """A training with its settings by dotted name and the last values of its metrics."""

    training: RecordedTraining
    values: Mapping[str, Any]
    """Everything by name: `BASICS`, settings and metrics."""

    @property
    def title(self) -> str:
        return name_of(self.training)


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
        rows.append(ListedTraining(training, {**last, **settings_of(training), **basics}))
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


def group_rows(rows: Sequence[ListedTraining], names: Sequence[str]) -> dict[str, list[ListedTraining]]:
    """Return the rows by the values that they have under these names, in the order in which the values occur."""
    groups: dict[str, list[ListedTraining]] = {}
    for row in rows:
        label = ", ".join(f"{name}={_level(row.values.get(name))}" for name in names)
        groups.setdefault(formats.printable(label), []).append(row)
    return groups


def _level(value: Any) -> str:
    if isinstance(value, tuple):
        return "+".join(map(str, value)) or formats.MISSING
    return formats.MISSING if value is None else formats.shortened(formats.setting(value), 60)
