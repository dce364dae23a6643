"""Versions of the database and of a study, by which a reader knows whether anything was written."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from typing import Any

from sqlalchemy import BigInteger, Column, ColumnElement, Select, Text, bindparam, cast, func, select

from experiments_db.errors import RecordNotFound
from experiments_db.records import RunMean, StudyRuns
from experiments_db.stores.base import StoreBase, read
from experiments_db.tables import (
    ANALYSES,
    ARTIFACTS,
    CHARGES,
    CHARTERS,
    DECISIONS,
    EVALUATIONS,
    EVENTS,
    EXPERIMENTS,
    FINDINGS,
    HYPOTHESES,
    LLM_CALLS,
    NOTES,
    QUESTIONS,
    REVIEWS,
    RUN_SUMMARIES,
    RUNS,
    STUDIES,
    TRIALS,
    Rows,
)


class RevisionStore(StoreBase):
    """The reading of versions; the other parts call `renumber` as they write, also for a curve or score of a run."""

    def read_version(self) -> str:
        """Return a text that differs from the one before if another process or store has changed anything since.

        Nothing of any table is read, so a reader may ask again and again.
        """
        return self._database.read_version()

    def read_study_version(self, study_id: str) -> tuple[Any, ...]:
        """Return values that differ from the ones before if anything of the study was written since.

        Episodes of its runs are not looked at, nor its lease, nor charges of less than a minute in all. Raises
        RecordNotFound.
        """
        with self._read() as connection:
            found = connection.execute(_study_version(), {"study_id": study_id}).one_or_none()
        if found is None:
            raise RecordNotFound(f"there is no study {study_id!r}")
        return tuple(found)

    def list_all_runs(self, study_ids: Collection[str]) -> StudyRuns:
        """Return the arms, the runs in short and the mean scores of several studies, the newest study first.

        Nothing of a run that is long is read.
        """
        arms = EXPERIMENTS.select(EXPERIMENTS.c.study_id.in_(study_ids))
        runs = RUN_SUMMARIES.select(RUNS.c.study_id.in_(study_ids))
        score = EVALUATIONS.c
        means = (
            select(score.run_id, score.phase, score.split, score.mean)
            .join(RUNS.table, RUNS.c.id == score.run_id)
            .where(RUNS.c.study_id.in_(study_ids))
            .order_by(score.id)
        )
        with self._read() as connection:
            return StudyRuns(
                read(connection, EXPERIMENTS, arms.order_by(EXPERIMENTS.c.created_at, EXPERIMENTS.c.id)),
                read(connection, RUN_SUMMARIES, runs.order_by(RUNS.c.study_id.desc(), RUNS.c.created_at, RUNS.c.id)),
                tuple(RunMean(*mean) for mean in connection.execute(means)),
            )


@cache
def _study_version() -> Select[*tuple[Any, ...]]:
    """Return the statement that reads what grows or changes with each write of a study, most of it from indexes."""
    parts = (
        *(_of_study(rows, func.max(rows.c.id)) for rows in (EVENTS, LLM_CALLS, NOTES, TRIALS)),
        *(_of_study(rows, func.max(rows.c.created_at)) for rows in (ANALYSES, ARTIFACTS, DECISIONS)),
        *(_of_study(rows, func.count()) for rows in (ARTIFACTS, FINDINGS, HYPOTHESES, QUESTIONS, REVIEWS)),
        _of_study(CHARTERS, CHARTERS.c.created_at),
        _of_study(CHARTERS, CHARTERS.c.test_opened_at),
        _of_study(FINDINGS, func.sum(FINDINGS.c.p_adjusted)),
        _of_study(FINDINGS, func.count(FINDINGS.c.retracted_at)),
        _of_study(HYPOTHESES, _joined(HYPOTHESES.c.verdict)),
        _of_study(HYPOTHESES, _joined(HYPOTHESES.c.verdict_reason)),
        _of_study(QUESTIONS, _joined(QUESTIONS.c.status)),
        _of_study(QUESTIONS, _joined(QUESTIONS.c.answer)),
        _of_study(REVIEWS, _joined(REVIEWS.c.response)),
        # Times are charged with every heartbeat.
        _of_study(CHARGES, cast(func.sum(CHARGES.c.amount) / 60, BigInteger)),
    )
    own = (STUDIES.c.revision, STUDIES.c.updated_at, STUDIES.c.status)
    return select(*own, *parts).where(STUDIES.c.id == bindparam("study_id"))


def _of_study(rows: Rows[Any], value: ColumnElement[Any]) -> Any:
    own = rows.c.study_id == bindparam("study_id")
    return select(value).select_from(rows.table).where(own).scalar_subquery()


def _joined(column: Column[Any]) -> Any:
    return func.aggregate_strings(cast(column, Text), " ")
