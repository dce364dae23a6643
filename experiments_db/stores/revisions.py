"""Revisions, the numbers of a study's writes, kept with its arms, plans and runs.

Place in the flow: a part of ExperimentStore. The other parts call `renumber` as they write. This part returns the rows
that are newer than a revision, so a reader that looks repeatedly reads only new rows. A new curve or score of a run
counts as a write of the run.

The counter is in the row of the study, which stays locked until the transaction ends. Revisions are therefore committed
in order, on a server too. A reader that has seen one revision never meets an older one later.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields
from functools import cache
from typing import Any

from sqlalchemy import BigInteger, Select, String, Text, bindparam, cast, func, select, update
from sqlalchemy.orm import InstrumentedAttribute, Session

from experiments_db.errors import RecordNotFound
from experiments_db.models import (
    AnalysisRow,
    ArtifactRow,
    Base,
    BudgetEntryRow,
    CharterRow,
    DecisionRow,
    ExperimentRow,
    FindingRow,
    HypothesisRow,
    LLMCallRow,
    NotebookRow,
    PlannerQuestionRow,
    PlanRow,
    ProgramTrialRow,
    ReviewRow,
    RunEvaluationRow,
    RunRow,
    StudyEventRow,
    StudyRow,
)
from experiments_db.records import (
    Changes,
    Experiment,
    IterationDocument,
    Run,
    RunChanges,
    RunMean,
    RunSummary,
    StudyRuns,
)
from experiments_db.stores.base import StoreBase, to_record

_COUNT = (
    update(StudyRow)
    .where(StudyRow.id == bindparam("of_study"))
    .values(revision=StudyRow.revision + 1)
    .returning(StudyRow.revision)
    .execution_options(synchronize_session=False)
)
"""Takes the next revision of a study. Made once, for making it takes longer than carrying it out."""

_RUN_SUMMARY = tuple(getattr(RunRow, field.name) for field in fields(RunSummary))


class RevisionStore(StoreBase):
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
        with self._read() as session:
            found = session.execute(_study_version(), {"study_id": study_id}).one_or_none()
        if found is None:
            raise RecordNotFound(f"there is no study {study_id!r}")
        return tuple(found)

    def find_revision(self, study_id: str) -> int:
        """Return the revision of the last write of the study's arms, plans, runs, curves and scores; 0 before any."""
        with self._read() as session:
            return _revision_of(session, study_id)

    def list_changes(self, study_id: str, *, after: int = 0) -> Changes:
        """Return what was written after a revision, or everything for 0.

        If nothing was written, only the counter is read.
        """
        with self._read() as session:
            # The counter comes first: a write between the two statements is then read again, never missed.
            revision = _revision_of(session, study_id)
            if 0 < revision == after:
                return Changes(revision, (), (), ())
            experiments = _newer(ExperimentRow, ExperimentRow.revision, study_id, after)
            plans = _newer(PlanRow, PlanRow.revision, study_id, after).order_by(PlanRow.iteration)
            runs = _newer(RunRow, RunRow.revision, study_id, after).order_by(RunRow.created_at, RunRow.id)
            by_age = experiments.order_by(ExperimentRow.created_at, ExperimentRow.id)
            return Changes(
                revision,
                tuple(to_record(Experiment, row) for row in session.scalars(by_age)),
                tuple(to_record(IterationDocument, row) for row in session.scalars(plans)),
                tuple(to_record(Run, row) for row in session.scalars(runs)),
            )

    def list_all_runs(self, study_ids: Collection[str]) -> StudyRuns:
        """Return the arms, the runs in short and the mean scores of several studies, the newest study first."""
        row = RunEvaluationRow
        of_studies = RunRow.study_id.in_(study_ids)
        arms = select(ExperimentRow).where(ExperimentRow.study_id.in_(study_ids))
        runs = select(*_RUN_SUMMARY).where(of_studies).order_by(RunRow.study_id.desc(), RunRow.created_at, RunRow.id)
        means = select(row.run_id, row.phase, row.split, row.mean).join(RunRow, RunRow.id == row.run_id)
        with self._read() as session:
            return StudyRuns(
                tuple(to_record(Experiment, arm) for arm in session.scalars(arms)),
                tuple(RunSummary(*run) for run in session.execute(runs)),
                tuple(RunMean(*mean) for mean in session.execute(means.where(of_studies).order_by(row.id))),
            )

    def list_run_changes(self, study_id: str, *, after: int = 0) -> RunChanges:
        """Return what `list_changes` does of arms and runs, in short: nothing of a run that is long is read."""
        with self._read() as session:
            # The counter comes first: a write between the statements is then read again, never missed.
            revision = _revision_of(session, study_id)
            if 0 < revision == after:
                return RunChanges(revision, (), (), ())
            experiments = _newer(ExperimentRow, ExperimentRow.revision, study_id, after)
            by_age = experiments.order_by(ExperimentRow.created_at, ExperimentRow.id)
            newer = {"study_id": study_id, "after": after}
            return RunChanges(
                revision,
                tuple(to_record(Experiment, row) for row in session.scalars(by_age)),
                tuple(RunSummary(*row) for row in session.execute(_run_summaries(), newer)),
                tuple(RunMean(*row) for row in session.execute(_run_means(), newer)),
            )


@cache
def _run_summaries() -> Select[*tuple[Any, ...]]:
    return select(*_RUN_SUMMARY).where(*_newer_runs()).order_by(RunRow.created_at, RunRow.id)


@cache
def _run_means() -> Select[*tuple[Any, ...]]:
    row = RunEvaluationRow
    means = select(row.run_id, row.phase, row.split, row.mean).join(RunRow, RunRow.id == row.run_id)
    return means.where(*_newer_runs()).order_by(row.id)


def _newer_runs() -> tuple[Any, Any]:
    return RunRow.study_id == bindparam("study_id"), RunRow.revision > bindparam("after")


@cache
def _study_version() -> Select[*tuple[Any, ...]]:
    """Return the statement that reads what grows or changes with each write of a study, most of it from indexes.

    It is cached, because building it takes longer than running it.
    """
    values = (
        *(func.max(row.id) for row in (StudyEventRow, LLMCallRow, NotebookRow, ProgramTrialRow)),
        *(func.max(row.created_at) for row in (AnalysisRow, ArtifactRow, DecisionRow)),
        *(
            func.count(row.created_at)
            for row in (ArtifactRow, FindingRow, HypothesisRow, PlannerQuestionRow, ReviewRow)
        ),
        CharterRow.created_at,
        CharterRow.test_opened_at,
        func.sum(FindingRow.p_adjusted),
        func.count(FindingRow.retracted_at),
        _joined(HypothesisRow.verdict),
        _joined(HypothesisRow.verdict_reason),
        _joined(PlannerQuestionRow.status),
        _joined(PlannerQuestionRow.answer),
        _joined(ReviewRow.response),
        # Times are charged with every heartbeat.
        cast(func.sum(BudgetEntryRow.amount) / 60, BigInteger),
    )
    of_study = bindparam("study_id", type_=String)
    parts = [select(value).filter_by(study_id=of_study).scalar_subquery() for value in values]
    own = (StudyRow.revision, StudyRow.updated_at, StudyRow.status)
    return select(*own, *parts).where(StudyRow.id == of_study)


def _joined(column: InstrumentedAttribute[Any]) -> Any:
    return func.aggregate_strings(cast(column, Text), " ")


def renumber(session: Session, row: ExperimentRow | PlanRow | RunRow) -> None:
    """Give a row that was written the next revision of its study.

    Every write locks its row before the counter, so that no two of them wait for each other.
    """
    session.flush()
    session.refresh(row, with_for_update=True)
    row.revision = session.execute(_COUNT, {"of_study": row.study_id}).scalar_one()


def _revision_of(session: Session, study_id: str) -> int:
    return session.scalar(select(StudyRow.revision).where(StudyRow.id == study_id)) or 0


def _newer(row: type[Base], revision: InstrumentedAttribute[Any], study_id: str, after: int) -> Select[Any]:
    return select(row).where(revision > after).filter_by(study_id=study_id)
