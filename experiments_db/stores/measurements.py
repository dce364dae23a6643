"""The measurements of runs: curves, evaluations on held-out splits, and episodes down to the token.

Place in the flow: a part of ExperimentStore. The researcher's monitor and evaluate nodes write here; the explorer and
the report read.

Rule for numbers that are not finite: a curve keeps the point with no value (`MetricPoint.value` is None), because a
diverged run must show as such. An evaluation or a reward that is not finite is refused (InvalidRecord).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from sqlalchemy import JSON, Select, Subquery, func, literal, select, type_coerce
from sqlalchemy.orm import defer

from experiments_db.errors import InvalidRecord
from experiments_db.models import EpisodeSampleRow, MetricPointRow, RunEvaluationRow, RunRow
from experiments_db.records import (
    DetailedEvaluation,
    EpisodeSample,
    EpisodeSummary,
    EvaluationSummary,
    JsonObject,
    MetricPoint,
    MetricSpan,
)
from experiments_db.stores.base import StoreBase, check_finite, check_text, get_by, insert_rows, require, to_record
from experiments_db.stores.curves import Steps, read_curves, read_spans, select_curves
from experiments_db.stores.revisions import renumber

_POINT = (
    MetricPointRow.run_id,
    MetricPointRow.name,
    MetricPointRow.step,
    MetricPointRow.value,
    MetricPointRow.recorded_at,
)
"""The columns of a MetricPoint, in the order of its fields."""

_SUMMARY = tuple(getattr(RunEvaluationRow, field.name) for field in fields(EvaluationSummary))


class MeasurementStore(StoreBase):
    def record_metrics(self, run_id: str, values: Mapping[int, Mapping[str, float]]) -> None:
        """Store points as {step: {name: value}}; a point stored before under the same step and name is replaced.

        All or none is stored. Raises RecordNotFound.
        """
        now = self._clock()
        rows = [
            {"run_id": run_id, "name": name, "step": step, "value": _finite_or_none(value), "recorded_at": now}
            for step, metrics in values.items()
            for name, value in metrics.items()
        ]
        with self._write() as session:
            run = require(session, RunRow, run_id, "run", lock=True)
            key = ("run_id", "name", "step")
            insert_rows(session, MetricPointRow, rows, key=key, replace=("value", "recorded_at"))
            renumber(session, run)

    def list_metrics(
        self,
        run_ids: Collection[str],
        *,
        names: Collection[str] | None = None,
        after_step: int | None = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> list[MetricPoint]:
        """Return points of these runs by run, name and step; `names` None means every curve."""
        statement = select(MetricPointRow).where(MetricPointRow.run_id.in_(run_ids))
        if names is not None:
            statement = statement.where(MetricPointRow.name.in_(names))
        if after_step is not None:
            statement = statement.where(MetricPointRow.step > after_step)
        statement = statement.order_by(MetricPointRow.run_id, MetricPointRow.name, MetricPointRow.step)
        with self._read() as session:
            # Columns, not objects: there may be millions.
            rows = session.execute(statement.limit(limit).offset(offset).with_only_columns(*_POINT))
            return [MetricPoint(*row) for row in rows]

    def sample_metrics(
        self, run_ids: Collection[str], names: Collection[str], *, most: int, steps: Steps | None = None
    ) -> list[MetricSpan]:
        """Return these curves in spans, as `read_spans` does: all steps, or from the first to the last of `steps`."""
        point = MetricPointRow
        with self._read() as session:
            return read_spans(session, point, point.run_id, run_ids, names, most=most, steps=steps)

    def metric_names(self, run_ids: Collection[str]) -> list[str]:
        """Return the names of the curves that any of these runs has, sorted."""
        with self._read() as session:
            return sorted({name for _, name in read_curves(session, list(run_ids))})

    def latest_metrics(self, run_id: str) -> dict[str, MetricPoint]:
        """Return the point of the highest step of each curve, by name."""
        statement = _last_points(select_curves().subquery())
        with self._read() as session:
            return {row.name: MetricPoint(*row) for row in session.execute(statement, {"run_ids": [run_id]})}

    def latest_points(self, run_ids: Collection[str], name: str) -> dict[str, MetricPoint]:
        """Return the point of the highest step of one curve, by run; a run without that curve is left out."""
        curves = select(RunRow.id.label("run_id"), literal(name).label("name")).where(RunRow.id.in_(run_ids)).subquery()
        with self._read() as session:
            return {row.run_id: MetricPoint(*row) for row in session.execute(_last_points(curves))}

    def record_evaluation(
        self,
        run_id: str,
        *,
        phase: str,
        split: str,
        metric: str,
        weight_version: int,
        episodes: int,
        successes: int,
        mean: float,
        stderr: float,
        evaluator_hash: str,
        details: JsonObject | None = None,
    ) -> DetailedEvaluation:
        """Store a score; the first one of a run, phase and split stands and is returned, so nothing can be re-rolled.

        Raises InvalidRecord for numbers that cannot be, RecordNotFound.
        """
        check_text(phase=phase, split=split, metric=metric, evaluator_hash=evaluator_hash)
        check_finite(mean=mean, stderr=stderr)
        if episodes < 1 or not 0 <= successes <= episodes or stderr < 0:
            raise InvalidRecord(f"no evaluation has {successes} successes in {episodes} episodes with stderr {stderr}")
        values = {
            "run_id": run_id,
            "phase": phase,
            "split": split,
            "metric": metric,
            "weight_version": weight_version,
            "episodes": episodes,
            "successes": successes,
            "mean": mean,
            "stderr": stderr,
            "evaluator_hash": evaluator_hash,
            "details": dict(details or {}),
            "created_at": self._clock(),
        }
        with self._write() as session:
            run = require(session, RunRow, run_id, "run", lock=True)
            insert_rows(session, RunEvaluationRow, [values], key=("run_id", "phase", "split"))
            renumber(session, run)
            return to_record(
                DetailedEvaluation, get_by(session, RunEvaluationRow, run_id=run_id, phase=phase, split=split)
            )

    def find_evaluation(self, run_id: str, phase: str, split: str) -> DetailedEvaluation | None:
        evaluations = self.list_evaluations(run_ids=[run_id], phase=phase, split=split)
        return evaluations[0] if evaluations else None

    def find_detailed_evaluation(
        self, study_id: str, *, phase: str, split: str, weight_version: int, detail: tuple[str, str]
    ) -> DetailedEvaluation | None:
        """Return the first evaluation of a study whose `details` have this text under this name."""
        name, value = detail
        statement = _of_evaluations(select(RunEvaluationRow), study_id, None, phase, split)
        statement = statement.where(
            RunEvaluationRow.weight_version == weight_version,
            type_coerce(RunEvaluationRow.details, JSON)[name].as_string() == value,
        )
        found = self._list(statement.limit(1), DetailedEvaluation)
        return found[0] if found else None

    def list_evaluations(
        self,
        *,
        study_id: str | None = None,
        run_ids: Collection[str] | None = None,
        phase: str | None = None,
        split: str | None = None,
    ) -> list[DetailedEvaluation]:
        """Return evaluations that meet every condition given, in the order of recording; None is no condition."""
        return self._list(
            _of_evaluations(select(RunEvaluationRow), study_id, run_ids, phase, split), DetailedEvaluation
        )

    def list_evaluation_summaries(
        self,
        *,
        study_id: str | None = None,
        run_ids: Collection[str] | None = None,
        phase: str | None = None,
        split: str | None = None,
    ) -> list[EvaluationSummary]:
        """Return evaluations like `list_evaluations`, without `details`, the largest part of each."""
        statement = _of_evaluations(select(RunEvaluationRow), study_id, run_ids, phase, split)
        with self._read() as session:
            rows = session.execute(statement.with_only_columns(*_SUMMARY, maintain_column_froms=True))
            return [EvaluationSummary(*row) for row in rows]

    def record_episodes(self, run_id: str, episodes: Sequence[EpisodeSample]) -> None:
        """Store episodes of one run, all or none. Raises RecordNotFound.

        An episode whose id is already stored is left as it is.
        """
        rows: list[dict[str, Any]] = []
        for episode in episodes:
            if episode.summary.run_id != run_id:
                raise InvalidRecord(f"episode {episode.summary.episode_id} belongs to {episode.summary.run_id}")
            check_finite(reward=episode.summary.reward, advantage=episode.summary.advantage)
            rows.append(
                asdict(episode.summary) | {"messages": list(episode.messages), "samples": list(episode.samples)}
            )
        with self._write() as session:
            require(session, RunRow, run_id, "run")
            insert_rows(session, EpisodeSampleRow, rows, key=("run_id", "episode_id"))

    def list_episodes(
        self,
        run_id: str,
        *,
        kind: str | None = None,
        step: int | None = None,
        limit: int | None = 100,
        offset: int = 0,
    ) -> list[EpisodeSummary]:
        """Return episodes without text and tokens, by step and id."""
        statement = select(EpisodeSampleRow).where(EpisodeSampleRow.run_id == run_id)
        if kind is not None:
            statement = statement.where(EpisodeSampleRow.kind == kind)
        if step is not None:
            statement = statement.where(EpisodeSampleRow.step == step)
        statement = statement.options(defer(EpisodeSampleRow.messages), defer(EpisodeSampleRow.samples))
        statement = statement.order_by(EpisodeSampleRow.step, EpisodeSampleRow.episode_id)
        return self._list(statement.limit(limit).offset(offset), EpisodeSummary)

    def get_episode(self, run_id: str, episode_id: str) -> EpisodeSample:
        """Return one episode with text and tokens. Raises RecordNotFound."""
        with self._read() as session:
            row = require(session, EpisodeSampleRow, (run_id, episode_id), "episode")
            return EpisodeSample(
                summary=to_record(EpisodeSummary, row), messages=tuple(row.messages), samples=tuple(row.samples)
            )


def _of_evaluations(
    statement: Select[Any], study_id: str | None, run_ids: Collection[str] | None, phase: str | None, split: str | None
) -> Select[Any]:
    statement = statement.order_by(RunEvaluationRow.id)
    if study_id is not None:
        statement = statement.join(RunRow, RunRow.id == RunEvaluationRow.run_id).where(RunRow.study_id == study_id)
    if run_ids is not None:
        statement = statement.where(RunEvaluationRow.run_id.in_(run_ids))
    if phase is not None:
        statement = statement.where(RunEvaluationRow.phase == phase)
    if split is not None:
        statement = statement.where(RunEvaluationRow.split == split)
    return statement


def _last_points(curves: Subquery) -> Select[*tuple[Any, ...]]:
    """Select the last point of each curve by one lookup in the primary key, whatever the curve's length."""
    last = (
        select(func.max(MetricPointRow.step))
        .where(MetricPointRow.run_id == curves.c.run_id, MetricPointRow.name == curves.c.name)
        .correlate(curves)
        .scalar_subquery()
    )
    point = (
        (MetricPointRow.run_id == curves.c.run_id)
        & (MetricPointRow.name == curves.c.name)
        & (MetricPointRow.step == last)
    )
    return select(*_POINT).select_from(curves.join(MetricPointRow, point))


def _finite_or_none(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
