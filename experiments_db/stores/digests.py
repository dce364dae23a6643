"""The digest of a study, computed over its rows when it ends, so that a later change shows.

A digest is no signature: whoever writes to the database can replace it too. They cannot replace the digest in a report
that somebody else has.
"""

from __future__ import annotations

from dataclasses import asdict
from hashlib import sha256
from typing import Any

from sqlalchemy import Connection, Select, Table, collate, select

from experiments_db.errors import RecordNotFound
from experiments_db.kinds import BudgetKind
from experiments_db.records import StudyDigest, TableDigest, canonical_json
from experiments_db.stores.base import StoreBase
from experiments_db.tables import ARTIFACTS, CHARGES, EVENTS, METADATA, RUNS, STUDIES, PlainText

TABLES = tuple(
    table
    for table in METADATA.sorted_tables
    if table is STUDIES.table or not {"study_id", "run_id"}.isdisjoint(table.c.keys())
)
"""Every table with rows of a study. Leases and recorded trainings belong to none."""

LEFT_OUT = {
    "studies": {"status", "status_reason", "digest", "revision", "updated_at", "finished_at"},
    "findings": {"retracted_at", "retraction", "retracted_by"},
    # The removal of checkpoints is recorded there once the servers have stopped.
    "runs": {"external_ids", "updated_at"},
}
"""Columns that this program writes after the end, by table."""

TIMES = (BudgetKind.WALL_CLOCK_S, BudgetKind.WORKING_S, BudgetKind.GPU_HOURS)
"""What the process of a study is charged until it exits."""

REPORT_FILES = "report."
"""How the kinds of the files begin that hold the digest, and so cannot be part of it."""

CHUNK = 1000
"""How many rows are in memory at once: those of episodes are large."""


class DigestStore(StoreBase):
    def find_digest(self, study_id: str) -> StudyDigest | None:
        """Return the digest that the study ended with; None while it goes on. Raises RecordNotFound."""
        with self._read() as connection:
            return _stored_digest(connection, study_id)

    def compute_digest(self, study_id: str) -> StudyDigest:
        """Return the digest of the rows as they are now, without events after the end. Raises RecordNotFound."""
        with self._read() as connection:
            stored = _stored_digest(connection, study_id)
            return take_digest(connection, study_id, events=None if stored is None else stored.tables["events"].rows)


def take_digest(connection: Connection, study_id: str, *, events: int | None = None) -> StudyDigest:
    """Return the digest of a study's rows. Of its events the first `events` count; None means all of them."""
    tables: dict[str, TableDigest] = {}
    for table in TABLES:
        statement = _select_rows(table, study_id, connection.dialect.name)
        tables[table.name] = _digest_rows(connection, statement.limit(events) if table is EVENTS.table else statement)
    return StudyDigest(tables)


def digest_to_json(digest: StudyDigest) -> dict[str, Any]:
    """Return what the column `digest` of a study holds."""
    return {name: asdict(table) for name, table in digest.tables.items()}


def _stored_digest(connection: Connection, study_id: str) -> StudyDigest | None:
    row = connection.execute(select(STUDIES.c.digest).where(STUDIES.c.id == study_id)).one_or_none()
    if row is None:
        raise RecordNotFound(f"there is no study {study_id!r}")
    return None if row.digest is None else StudyDigest({name: TableDigest(**of) for name, of in row.digest.items()})


def _digest_rows(connection: Connection, statement: Select[Any]) -> TableDigest:
    """Return the SHA-256 of the rows as lines of canonical JSON, and how many there are."""
    digest, rows = sha256(), 0
    for row in connection.execute(statement.execution_options(yield_per=CHUNK)).mappings():
        digest.update(canonical_json(dict(row)).encode() + b"\n")
        rows += 1
    return TableDigest(rows, digest.hexdigest())


def _select_rows(table: Table, study_id: str, dialect: str) -> Select[Any]:
    """Return the rows of one study in the order of their primary key, the same order on every database."""
    statement = select(*(column for column in table.c if column.name not in LEFT_OUT.get(table.name, ())))
    if table is STUDIES.table:
        statement = statement.where(table.c.id == study_id)
    elif "study_id" in table.c:
        statement = statement.where(table.c.study_id == study_id)
    else:
        statement = statement.where(table.c.run_id.in_(select(RUNS.c.id).where(RUNS.c.study_id == study_id)))
    if table is CHARGES.table:
        statement = statement.where(table.c.kind.not_in(TIMES))
    if table is ARTIFACTS.table:
        statement = statement.where(~table.c.kind.startswith(REPORT_FILES))
    order = "C" if dialect == "postgresql" else "BINARY"
    keys = table.primary_key.columns
    return statement.order_by(*(collate(key, order) if isinstance(key.type, PlainText) else key for key in keys))
