"""The check of trainings that servers recorded in the database, against the runs of the study that they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from experiments_db import RecordedTraining, Run
from researcher.verification.result import RecordCheck, differences

if TYPE_CHECKING:
    from researcher.verification.record import StudyRecord


def check_recorded_trainings(record: StudyRecord) -> Iterator[RecordCheck]:
    """Check that curves and settings of a recorded training are those of its run, and its scores those of its curve."""
    check = RecordCheck("recorded trainings", 0)
    for run in record.runs.values():
        training = record.store.find_launched_training(run.idempotency_key)
        if training is not None:
            check.checked += 1
            check.mismatches += _compare(record, run, training)
    if check.checked:
        yield check


def _compare(record: StudyRecord, run: Run, training: RecordedTraining) -> Iterator[str]:
    where = f"recorded training {training.id} of {run.id}"
    yield from differences(dict(training.settings), dict(run.job), f"{where}: settings")
    points = {(each.name, each.step): each.value for each in record.store.list_training_points(training.id)}
    for point in record.store.list_metrics([run.id]):
        if (point.name, point.step) in points:
            value = points[point.name, point.step]
            yield from differences(value, point.value, f"{where}: {point.name} of step {point.step}")
    for score in record.store.list_training_scores([training.id]):
        value = points.get(("eval/mean", score.step))
        yield from differences(score.mean, value, f"{where}: score of step {score.step}")
