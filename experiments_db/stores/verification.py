"""Whether the rows of a study are those that were stored: each compared with its seal.

Place in the flow: a part of ExperimentStore; `researcher verify` asks. How seals are made is told in seals.py.
"""

from __future__ import annotations

from typing import cast

from sqlalchemy import RowMapping, Table, select
from sqlalchemy.orm import Session

from experiments_db.models import Base, RowSealRow, RunRow, StudyRow
from experiments_db.records import SealedRows
from experiments_db.stores.base import StoreBase
from experiments_db.stores.seals import BEGUN, SEALED, Key, digest_of, key_columns, name_of


class VerificationStore(StoreBase):
    def check_rows(self, study_id: str) -> tuple[SealedRows, ...]:
        """One result per table that has rows of the study, or had."""
        with self._read() as session:
            statement = select(RowSealRow.kind, RowSealRow.row_key, RowSealRow.digest)
            seals: dict[str, dict[str, str]] = {}
            for kind, key, digest in session.execute(statement.where(RowSealRow.study_id == study_id)):
                seals.setdefault(kind, {})[key] = digest
            is_whole = BEGUN in seals
            results = [_compare(session, row, study_id, seals.get(row.__tablename__, {}), is_whole) for row in SEALED]
        return tuple(result for result in results if result.total or result.missing)


def _compare(session: Session, row: type[Base], study_id: str, seals: dict[str, str], is_whole: bool) -> SealedRows:
    stored = {name_of(key): digest_of(rows) for key, rows in _rows_of(session, row, study_id).items()}
    unsealed = stored.keys() - seals.keys()
    return SealedRows(
        table=row.__tablename__,
        total=len(stored),
        intact=sum(seals.get(key) == digest for key, digest in stored.items()),
        changed=tuple(sorted(key for key, digest in stored.items() if seals.get(key, digest) != digest)),
        missing=tuple(sorted(seals.keys() - stored.keys())),
        added=tuple(sorted(unsealed)) if is_whole else (),
        unsealed=0 if is_whole else len(unsealed),
    )


def _rows_of(session: Session, row: type[Base], study_id: str) -> dict[Key, list[RowMapping]]:
    table = cast(Table, row.__table__)
    statement = select(table)
    if row is StudyRow:
        statement = statement.where(table.c.id == study_id)
    elif "study_id" in table.c:
        statement = statement.where(table.c.study_id == study_id)
    else:
        statement = statement.join(RunRow, RunRow.id == table.c.run_id).where(RunRow.study_id == study_id)
    found: dict[Key, list[RowMapping]] = {}
    for stored in session.execute(statement).mappings():
        found.setdefault(tuple(stored[name] for name in key_columns(row)), []).append(stored)
    return found
