"""What one transaction touches of a study, and the revision that it gives to that at its end.

Place in the flow: the `Watch` over a write reports every row that it stores, whichever part of the store wrote it. What
revisions are for is told in revisions.py, which reads them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, cast

from sqlalchemy import RowMapping, Table, Update, bindparam, update
from sqlalchemy.orm import Session
from sqlalchemy.sql.dml import ReturningInsert

from experiments_db.inserts import dialect_of, insert_into
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
            revision = session.execute(_count(dialect_of(session)), {"study_id": study_id}).scalar_one()
            for row, keys in ((ExperimentRow, self._experiments), (PlanRow, self._plans), (RunRow, self._runs)):
                for chunk in _chunks(keys.get(study_id, ())):
                    values = {"of_study": study_id, "next_revision": revision, "keys": chunk}
                    # Past the session: its objects have been made into records by then.
                    session.connection().execute(_mark(row), values)


# Every write needs these statements, and to make one takes longer than to carry it out.
@cache
def _count(dialect: str) -> ReturningInsert[int]:
    """Takes the next revision of a study; the row of the counter is locked from then to the end of the transaction."""
    statement = (
        insert_into(StudyRevisionRow, dialect)
        .values(study_id=bindparam("study_id"), revision=1)
        .on_conflict_do_update(index_elements=["study_id"], set_={"revision": StudyRevisionRow.revision + 1})
    )
    return statement.returning(StudyRevisionRow.revision)


@cache
def _mark(row: type[Base]) -> Update:
    table = cast(Table, row.__table__)
    key = table.c.iteration if row is PlanRow else table.c.id
    chosen = (table.c.study_id == bindparam("of_study")) & key.in_(bindparam("keys", expanding=True))
    return update(table).where(chosen).values(revision=bindparam("next_revision"))


def _chunks(keys: Iterable[Any]) -> list[list[Any]]:
    listed = sorted(keys)
    return [listed[start : start + _CHUNK] for start in range(0, len(listed), _CHUNK)]
