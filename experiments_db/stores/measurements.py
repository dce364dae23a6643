"""The measurements of runs: curves, evaluations on held-out splits, and episodes down to the token.

A curve keeps a point that is not finite with no value (`MetricPoint.value` is None), because a diverged run must show
as such. An evaluation or a reward that is not finite is refused (InvalidRecord).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NotRequired, TypedDict, TypeVar, Unpack

from sqlalchemy import JSON, ColumnElement, func, literal, select, type_coerce

from experiments_db.errors import InvalidRecord
from experiments_db.records import (
    DetailedEvaluation,
    EpisodeSample,
    EpisodeSummary,
    EvaluationSummary,
    JsonObject,
    MetricPoint,
    MetricSpan,
)
from experiments_db.stores.base import StoreBase, check_finite, check_text, count_write, insert_rows, put, require
from experiments_db.stores.curves import OWNERS, Steps, read_names, read_spans, select_last
from experiments_db.tables import EPISODES, EVALUATION_SUMMARIES, EVALUATIONS, METRIC_POINTS, RUNS, Rows

EvaluationT = TypeVar("EvaluationT", bound=EvaluationSummary)


class NewEvaluation(TypedDict):
    """The fields of a new score; `DetailedEvaluation` explains them."""

    phase: str
    split: str
    metric: str
    weight_version: int
    episodes: int
    successes: int
    mean: float
    stderr: float
    evaluator_hash: str
    details: NotRequired[JsonObject | None]


class EvaluationConditions(TypedDict, total=False):
    """The evaluations that are asked for; None is no condition."""

    study_id: str | None
    run_ids: Collection[str] | None
    phase: str | None
    split: str | None


class MeasurementStore(StoreBase):
    def record_metrics(self, run_id: str, values: Mapping[int, Mapping[str, float]]) -> None:
        """Store points as {step: {name: value}}; a point stored before under the same step and name is replaced.

        All or none is stored. Raises RecordNotFound.
        """
        now = self._clock()
        rows = [
            asdict(MetricPoint(run_id, name, step, float(value) if math.isfinite(value) else None, now))
            for step, metrics in values.items()
            for name, value in metrics.items()
        ]
        with self._write() as connection:
            run = require(connection, RUNS, run_id, lock=True)
            key = ("run_id", "name", "step")
            insert_rows(connection, METRIC_POINTS, rows, key=key, replace=("value", "recorded_at"))
            count_write(connection, run.study_id)

    def list_metrics(self, run_ids: Collection[str], *, names: Collection[str] | None = None) -> list[MetricPoint]:
        """Return points of these runs by run, name and step; `names` None means every curve."""
        of_names = () if names is None else (METRIC_POINTS.c.name.in_(names),)
        return self._list(METRIC_POINTS, METRIC_POINTS.c.run_id.in_(run_ids), *of_names)

    def sample_metrics(
        self, owner_ids: Collection[str], names: Collection[str], *, most: int, steps: Steps | None = None
    ) -> list[MetricSpan]:
        """Return these curves of runs or trainings in spans, as `read_spans` does.

        All steps are read, or those from the first to the last of `steps`.
        """
        with self._read() as connection:
            return [
                span
                for points in OWNERS
                for span in read_spans(connection, points, owner_ids, names, most=most, steps=steps)
            ]

    def metric_names(self, owner_ids: Collection[str]) -> list[str]:
        """Return the names of the curves that any of these runs or trainings has, sorted."""
        with self._read() as connection:
            return sorted({name for points in OWNERS for name in read_names(connection, points, owner_ids)})

    def latest_points(self, run_ids: Collection[str], name: str) -> dict[str, MetricPoint]:
        """Return the point of the highest step of one curve, by run; a run without that curve is left out."""
        curves = select(RUNS.c.id.label("owner"), literal(name).label("name")).where(RUNS.c.id.in_(run_ids)).subquery()
        with self._read() as connection:
            return {row.run_id: MetricPoint(*row) for row in connection.execute(select_last(METRIC_POINTS, curves))}

    def sum_metric(self, run_ids: Collection[str], name: str) -> dict[str, float]:
        """Return the sum over all steps of one curve, by run; a run without that curve is left out."""
        points = METRIC_POINTS.c
        summed = (
            select(points.run_id, func.sum(points.value))
            .where(points.run_id.in_(run_ids), points.name == name, points.value.is_not(None))
            .group_by(points.run_id)
        )
        with self._read() as connection:
            return {run_id: float(total) for run_id, total in connection.execute(summed)}

    def record_evaluation(self, run_id: str, **score: Unpack[NewEvaluation]) -> DetailedEvaluation:
        """Store a score; the first one of a run, phase and split stands and is returned, so nothing can be re-rolled.

        Raises InvalidRecord for numbers that cannot be, RecordNotFound.
        """
        check_text(**{name: score[name] for name in ("phase", "split", "metric", "evaluator_hash")})
        check_finite(mean=score["mean"], stderr=score["stderr"])
        episodes, successes, stderr = score["episodes"], score["successes"], score["stderr"]
        if episodes < 1 or not 0 <= successes <= episodes or stderr < 0:
            raise InvalidRecord(f"no evaluation has {successes} successes in {episodes} episodes with stderr {stderr}")
        values = {**score, "run_id": run_id, "details": score.get("details") or {}, "created_at": self._clock()}
        with self._write() as connection:
            run = require(connection, RUNS, run_id, lock=True)
            stored = put(connection, EVALUATIONS, values, key=("run_id", "phase", "split"))
            count_write(connection, run.study_id)
            return stored

    def find_evaluation(self, run_id: str, phase: str, split: str) -> DetailedEvaluation | None:
        evaluations = self.list_evaluations(run_ids=[run_id], phase=phase, split=split)
        return evaluations[0] if evaluations else None

    def find_detailed_evaluation(
        self, study_id: str, *, phase: str, split: str, weight_version: int, detail: tuple[str, str]
    ) -> DetailedEvaluation | None:
        """Return the first evaluation of a study whose `details` have this text under this name."""
        name, value = detail
        found = self._list(
            EVALUATIONS,
            _of_study(study_id),
            type_coerce(EVALUATIONS.c.details, JSON)[name].as_string() == value,
            limit=1,
            phase=phase,
            split=split,
            weight_version=weight_version,
        )
        return found[0] if found else None

    def list_evaluations(self, **wanted: Unpack[EvaluationConditions]) -> list[DetailedEvaluation]:
        """Return evaluations that meet every condition given, in the order of recording; None is no condition."""
        return self._list_evaluations(EVALUATIONS, wanted)

    def list_evaluation_summaries(self, **wanted: Unpack[EvaluationConditions]) -> list[EvaluationSummary]:
        """Return evaluations like `list_evaluations`, without `details`, the largest part of each."""
        return self._list_evaluations(EVALUATION_SUMMARIES, wanted)

    def _list_evaluations(self, rows: Rows[EvaluationT], wanted: EvaluationConditions) -> list[EvaluationT]:
        study_id, run_ids = wanted.get("study_id"), wanted.get("run_ids")
        conditions = [] if study_id is None else [_of_study(study_id)]
        if run_ids is not None:
            conditions.append(EVALUATIONS.c.run_id.in_(run_ids))
        return self._list(rows, *conditions, phase=wanted.get("phase"), split=wanted.get("split"))

    def record_episodes(self, run_id: str, episodes: Sequence[EpisodeSample]) -> None:
        """Store episodes of one run, all or none. Raises RecordNotFound.

        An episode whose id is already stored is left as it is.
        """
        rows: list[dict[str, Any]] = []
        for episode in episodes:
            if episode.summary.run_id != run_id:
                raise InvalidRecord(f"episode {episode.summary.episode_id} belongs to {episode.summary.run_id}")
            check_finite(reward=episode.summary.reward, advantage=episode.summary.advantage)
            rows.append(asdict(episode.summary) | {"messages": episode.messages, "samples": episode.samples})
        with self._write() as connection:
            require(connection, RUNS, run_id)
            insert_rows(connection, EPISODES, rows, key=("run_id", "episode_id"))

    def list_episodes(
        self, run_id: str, *, kind: str | None = None, step: int | None = None, limit: int | None = 100
    ) -> list[EpisodeSummary]:
        """Return episodes without text and tokens, by step and id."""
        order = EPISODES.c.step, EPISODES.c.episode_id
        return self._list(EPISODES, order=order, limit=limit, run_id=run_id, kind=kind, step=step)

    def get_episode(self, run_id: str, episode_id: str) -> EpisodeSample:
        """Return one episode with text and tokens. Raises RecordNotFound."""
        return EpisodeSample(*self._get_with_text(EPISODES, (run_id, episode_id)))


def _of_study(study_id: str) -> ColumnElement[bool]:
    return EVALUATIONS.c.run_id.in_(select(RUNS.c.id).where(RUNS.c.study_id == study_id))
