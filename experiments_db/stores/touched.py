"""What one transaction touches of a study, and the revision that it gives to that at its end.

Place in the flow: the `Watch` over a write reports every row that it stores, whichever part of the store wrote it. What
revisions are for is told in revisions.py, which reads them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import RowMapping, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from experiments_db.models import (
    Base,
    EvaluationRow,
    ExperimentRow,
    MetricPointRow,
    PlanRow,
    RunRow,
    StudyRevisionRow,
)

_CHUNK = 500


class Touched:
    """The arms, plans and runs that a transaction has written, or whose measurements it has, by study."""

    def __init__(self) -> None:
        self._experiments: dict[str, set[str]] = defaultdict(set)
        self._plans: dict[str, set[int]] = defaultdict(set)
        self._runs: dict[str, set[str]] = defaultdict(set)

    def add(self, row: type[Base], study_id: str, stored: Sequence[RowMapping]) -> None:
        """Rows of one table and study, as they are stored now."""
        if row is ExperimentRow:
            self._experiments[study_id].update(item["id"] for item in stored)
        elif row is PlanRow:
            self._plans[study_id].update(item["iteration"] for item in stored)
        elif row is RunRow:
            self._runs[study_id].update(item["id"] for item in stored)
        elif row in (EvaluationRow, MetricPointRow):
            self._runs[study_id].update(item["run_id"] for item in stored)

    def number(self, session: Session) -> None:
        """Give all of it the next revision of its study."""
        for study_id in sorted(self._experiments.keys() | self._plans.keys() | self._runs.keys()):
            revision = {"revision": _next_revision(session, study_id)}
            for chunk in _chunks(self._experiments.get(study_id, ())):
                session.execute(update(ExperimentRow).where(ExperimentRow.id.in_(chunk)).values(revision), **_PLAIN)
            for chunk in _chunks(self._plans.get(study_id, ())):
                chosen = (PlanRow.study_id == study_id) & PlanRow.iteration.in_(chunk)
                session.execute(update(PlanRow).where(chosen).values(revision), **_PLAIN)
            for chunk in _chunks(self._runs.get(study_id, ())):
                session.execute(update(RunRow).where(RunRow.id.in_(chunk)).values(revision), **_PLAIN)


_PLAIN: Mapping[str, Any] = {"execution_options": {"synchronize_session": False}}
"""The objects of the session have been made into records by then."""


def _next_revision(session: Session, study_id: str) -> int:
    """The row of the counter is locked from here to the end of the transaction."""
    is_postgresql = session.get_bind().dialect.name == "postgresql"
    insert = (postgresql.insert if is_postgresql else sqlite.insert)(StudyRevisionRow)
    statement = insert.values(study_id=study_id, revision=1).on_conflict_do_update(
        index_elements=["study_id"], set_={"revision": StudyRevisionRow.revision + 1}
    )
    return session.execute(statement.returning(StudyRevisionRow.revision)).scalar_one()


def _chunks(keys: Iterable[Any]) -> list[list[Any]]:
    listed = sorted(keys)
    return [listed[start : start + _CHUNK] for start in range(0, len(listed), _CHUNK)]
