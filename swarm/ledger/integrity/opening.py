"""The opening of a ledger with its control file for writing, and the close that leaves everything in one file."""

from __future__ import annotations

import json
import logging
import sqlite3
import time
import uuid
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from swarm.errors import LedgerError
from swarm.ledger.database import connect_writer, log_of
from swarm.ledger.integrity.control import ClosedFile, ControlFile, Mark
from swarm.ledger.integrity.inspection import inspect
from swarm.ledger.integrity.openings import LedgerHistory, insert_opening, read_history
from swarm.ledger.integrity.place import LedgerPlace, name_others

logger = logging.getLogger(__name__)

CHECK_LIMIT_S = 5.0
"""The time limit of a check. SQLite's own check reads about a gigabyte in two seconds. The rest is checked when it is
read, or by `swarm doctor`."""

ADOPTED = "ledger.adopted"
"""The event of a ledger that came without its control file, as a copy of the file alone does."""


@dataclass(frozen=True, slots=True)
class OpenLedger:
    """The writer's connection in autocommit mode, with the control file in which its commits are noted.

    `place` is where its files were opened, and `history` has all its openings until now.
    """

    path: Path
    connection: sqlite3.Connection
    control: ControlFile
    place: LedgerPlace
    history: LedgerHistory

    def count(self) -> tuple[int, int]:
        """Count the present transaction as a commit. Return what to note once it is on disk."""
        row = self.connection.execute("UPDATE marks SET sequence = sequence + 1 RETURNING sequence, acknowledged")
        return tuple(row.fetchone())

    def close(self) -> None:
        """Move everything into the ledger's file, so that a copy of the file is a copy of everything.

        If the system refuses, the record stays in two files. Whatever lies in the place of a ledger that was moved
        stays as it is.
        """
        if (fault := self.place.look()) is not None:
            self.place.advise(fault, self.connection)
            self.connection.close()
            self.control.close(None)
            return
        try:
            is_busy = self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        except sqlite3.Error as error:
            logger.error("%s keeps its write-ahead log: %s", self.path, error)
            is_busy = True
        self.connection.close()
        if not is_busy and log_of(self.path).exists():
            # If a reader was the last to close, it left files behind, as readers do.
            with suppress(sqlite3.Error), closing(sqlite3.connect(self.path)) as connection:
                connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        closed = None
        if not is_busy:
            with suppress(OSError):
                closed = ClosedFile.of(self.path)
        self.control.close(closed)


def open_ledger(path: Path, require: Callable[[], object] = lambda: None) -> OpenLedger:
    """Check the file, create its tables if it is new, and note that it is open. The caller holds the lock.

    `require` is called once the file itself is known to be sound or new, and may raise. Raise LedgerDamaged or
    LedgerError, with the file untouched, for what `inspect` refuses.
    """
    try:
        inspected = inspect(path, CHECK_LIMIT_S)
        require()
        if inspected.mark is not None and not inspected.is_adopted:
            # This comes before the first write, since the note about the closed file is then no longer true.
            control = ControlFile.create(path, inspected.mark)
            try:
                return _begin(path, connect_writer(path), control)
            except BaseException:
                control.abandon()
                raise
        if inspected.mark is None and (others := name_others(path)) is not None:
            logger.warning("%s is a new ledger; %s", path, others)
        connection = connect_writer(path)
        try:
            mark = _new_mark(connection, path, inspected.mark)
            return _begin(path, connection, ControlFile.create(path, mark))
        except BaseException:
            connection.close()
            raise
    except (sqlite3.Error, OSError) as error:
        raise LedgerError(
            f"{path} cannot be opened ({error}): check that its directory can be written and has free space"
        ) from error


def _begin(path: Path, connection: sqlite3.Connection, control: ControlFile) -> OpenLedger:
    """Record the opening. The control file hears of it last, so that the ledger is never behind."""
    connection.execute("BEGIN IMMEDIATE")
    insert_opening(connection)
    opened = OpenLedger(path, connection, control, LedgerPlace(path), read_history(connection))
    counted = opened.count()
    connection.execute("COMMIT")
    control.note(*counted)
    return opened


def _new_mark(connection: sqlite3.Connection, path: Path, adopted: Mark | None) -> Mark:
    """Return the mark of a ledger without a control file.

    A copy gets an id of its own, because it and its original will record different things.
    """
    if adopted is not None:
        logger.warning(
            "%s came without a control file that can be read: it is taken as a copy, with %d acknowledged episodes;"
            " whether there were later ones is not on record",
            path,
            adopted.acknowledged,
        )
        return rename(connection, ADOPTED)
    return own_mark(connection)


def own_mark(connection: sqlite3.Connection) -> Mark:
    """Return the progress of a ledger by its own record."""
    return Mark(*connection.execute("SELECT ledger_id, sequence, acknowledged FROM marks").fetchone())


def rename(connection: sqlite3.Connection, kind: str) -> Mark:
    """Give a copy of a ledger an id of its own, record an event of this kind, and return its mark."""
    origin = own_mark(connection)
    detail = json.dumps({"acknowledged": origin.acknowledged, "of": origin.ledger_id})
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("UPDATE marks SET ledger_id = ?, sequence = sequence + 1", (uuid.uuid4().hex,))
    connection.execute("INSERT INTO events (kind, detail, at) VALUES (?, ?, ?)", (kind, detail, time.time()))
    connection.execute("COMMIT")
    return own_mark(connection)
