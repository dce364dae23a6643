"""Revisions: each write of a study has a number; its arms, plans and runs carry that of the last one to touch them.

Place in the flow: a part of ExperimentStore. touched.py numbers what a transaction has written, this module answers
what is newer than a revision. A run is touched as well by what it has measured: curves and scores. So a reader that
looks again and again reads the rows that are new to it and no others.

The counter is a row of the database that stays locked until the transaction ends. Revisions are therefore committed in
their order, on a server too, and a reader that has seen one never meets an older one later.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Select, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from experiments_db.models import Base, ExperimentRow, PlanRow, RunRow, StudyRevisionRow
from experiments_db.records import Changes, Experiment, IterationDocument, Run
from experiments_db.stores.base import StoreBase, to_record


class RevisionStore(StoreBase):
    def find_revision(self, study_id: str) -> int:
        """That of the last write of the study's arms, plans, runs, curves and scores; 0 before the first."""
        with self._read() as session:
            return _revision_of(session, study_id)

    def list_changes(self, study_id: str, *, after: int = 0) -> Changes:
        """What was written after a revision; all there is for 0. One look at the counter where nothing was."""
        with self._read() as session:
            # The counter first: what is committed between two statements is then read once more, never missed.
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


def _revision_of(session: Session, study_id: str) -> int:
    statement = select(StudyRevisionRow.revision).where(StudyRevisionRow.study_id == study_id)
    return session.scalar(statement) or 0


def _newer(row: type[Base], revision: InstrumentedAttribute[Any], study_id: str, after: int) -> Select[Any]:
    statement = select(row).filter_by(study_id=study_id)
    # Rows of an earlier version have no revision until they are written again.
    return statement.where(revision > after) if after else statement
