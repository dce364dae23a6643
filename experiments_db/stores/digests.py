"""The digests of a study, computed when it ends, so that a later change shows.

A digest is no signature: whoever writes to the database can replace it too. They cannot replace the digest in a report
that somebody else has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from hashlib import sha256
from typing import Any

from sqlalchemy import Connection, Select, Table, collate, select

from experiments_db.errors import RecordNotFound
from experiments_db.kinds import BudgetKind
from experiments_db.records import JsonObject, StudyDigest, StudySeal, TableDigest, canonical_json
from experiments_db.stores.base import StoreBase, change
from experiments_db.tables import ARTIFACTS, CHARGES, EVENTS, METADATA, RUNS, STUDIES, PlainText

TABLES = tuple(
    table
    for table in METADATA.sorted_tables
    if table is STUDIES.table or not {"study_id", "run_id"}.isdisjoint(table.c.keys())
)
"""Every table with rows of a study. Leases and recorded trainings belong to none."""

LEFT_OUT = {
    "studies": {"status", "status_reason", "digest", "seal", "revision", "updated_at", "finished_at"},
    "findings": {"retracted_at", "retraction", "retracted_by"},
    # The removal of checkpoints is recorded there once the servers have stopped.
    "runs": {"external_ids", "updated_at"},
}
"""Columns that this program writes after the end, by table."""

TIMES = (BudgetKind.WALL_CLOCK_S, BudgetKind.WORKING_S, BudgetKind.GPU_HOURS)
"""What the process of a study is charged until it exits."""

REPORT_FILES = "report."
"""How the kinds of the files begin that hold the digest, and so cannot be part of it."""

LATER = {
    "studies": ("id", "status", "status_reason", "finished_at"),
    "runs": ("id", "external_ids"),
    "budget_entries": tuple(CHARGES.c.keys()),
    "events": tuple(EVENTS.c.keys()),
}
"""Columns that are final only once nothing works on a study any more, by table; of charges those of `TIMES`."""

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

    def compute_later_digest(self, study_id: str, *, events: int | None = None) -> StudyDigest:
        """Return the digest of what is final only once nothing works on a study any more.

        It covers the end of the study, the times that it was charged, what its runs left elsewhere, and the first
        `events` events; None means all of them.
        """
        with self._read() as connection:
            dialect = connection.dialect.name
            statements = {name: _select_later(METADATA.tables[name], study_id, dialect) for name in LATER}
            statements["events"] = statements["events"].limit(events)
            return StudyDigest({name: _digest_rows(connection, each) for name, each in statements.items()})

    def find_seal(self, study_id: str) -> StudySeal | None:
        """Return the seal of an ended study; None while it goes on, or if its end was not sealed."""
        with self._read() as connection:
            stored = connection.execute(select(STUDIES.c.seal).where(STUDIES.c.id == study_id)).scalar_one_or_none()
        return None if stored is None else StudySeal(stored["files"], digest_from_json(stored["rows"]))

    def seal_study(self, study_id: str, files: Mapping[str, JsonObject]) -> None:
        """Store the seal of a study that has ended, of these files. Raises RecordNotFound."""
        rows = digest_to_json(self.compute_later_digest(study_id))
        with self._write() as connection:
            change(connection, STUDIES, study_id, seal={"files": files, "rows": rows})


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


def digest_from_json(document: Mapping[str, Any]) -> StudyDigest:
    return StudyDigest({name: TableDigest(**of) for name, of in document.items()})


def _stored_digest(connection: Connection, study_id: str) -> StudyDigest | None:
    row = connection.execute(select(STUDIES.c.digest).where(STUDIES.c.id == study_id)).one_or_none()
    if row is None:
        raise RecordNotFound(f"there is no study {study_id!r}")
    return None if row.digest is None else digest_from_json(row.digest)


def _digest_rows(connection: Connection, statement: Select[Any]) -> TableDigest:
    """Return the SHA-256 of the rows as lines of canonical JSON, and how many there are."""
    digest, rows = sha256(), 0
    for row in connection.execute(statement.execution_options(yield_per=CHUNK)).mappings():
        digest.update(canonical_json(dict(row)).encode() + b"\n")
        rows += 1
    return TableDigest(rows, digest.hexdigest())


def _select_rows(table: Table, study_id: str, dialect: str) -> Select[Any]:
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
    return _in_order(statement, table, dialect)


def _select_later(table: Table, study_id: str, dialect: str) -> Select[Any]:
    of_study = table.c.id if table is STUDIES.table else table.c.study_id
    statement = select(*(table.c[column] for column in LATER[table.name])).where(of_study == study_id)
    if table is CHARGES.table:
        statement = statement.where(table.c.kind.in_(TIMES))
    return _in_order(statement, table, dialect)


def _in_order(statement: Select[Any], table: Table, dialect: str) -> Select[Any]:
    """Return the rows in the order of their primary key, the same order on every database."""
    order = "C" if dialect == "postgresql" else "BINARY"
    keys = table.primary_key.columns
    return statement.order_by(*(collate(key, order) if isinstance(key.type, PlainText) else key for key in keys))
