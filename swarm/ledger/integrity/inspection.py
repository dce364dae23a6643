"""The inspection of a ledger before it is opened: what is wrong, and how many acknowledged episodes are lost."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swarm.errors import LedgerDamaged, LedgerError
from swarm.ledger.database import has_tables, log_of, open_unchanged, pragma
from swarm.ledger.integrity.control import ClosedFile, Mark, control_path, read_mark
from swarm.ledger.integrity.place import name_others
from swarm.ledger.tables import ACKNOWLEDGED, APPLICATION_ID, RESULT_COLUMNS, SCHEMA_VERSION, TURNS, is_intact

NOT_ON_RECORD = "how many acknowledged episodes are gone is not on record"

_REFUSALS = frozenset(
    {
        sqlite3.SQLITE_PERM, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_AUTH,
    }
)  # fmt: skip

MAX_GAP = 10_000
"""The most row numbers in a row without a readable row; after them the rest of a table is given up. A broken page that
points to others hides some thousands."""

ROWS_BETWEEN_LOOKS = 500
"""Rows between two looks at the clock, since one look costs as much as a row."""

_OF_RESULT = ", ".join(RESULT_COLUMNS)
_OF_TURN = ", ".join(TURNS.columns)
_STATE = f"state IN {ACKNOWLEDGED}, turns, is_compacted"


@dataclass(frozen=True, slots=True)
class Inspected:
    """A sound ledger. `mark` is None for a new one. `is_adopted` means that it has no control file to compare with."""

    mark: Mark | None
    is_adopted: bool


def inspect(path: Path, limit_s: float | None) -> Inspected:
    """Inspect the ledger at `path`, for about `limit_s` seconds.

    Raise LedgerDamaged for a ledger that is missing, empty, older than its control file, damaged or of another
    directory. Raise LedgerError for a ledger of another version and for a file that is not a ledger.
    """
    # The mark is read first: a server that runs meanwhile can only be ahead of it.
    noted = read_mark(path)
    try:
        return _look(path, noted, limit_s)
    except LedgerDamaged:
        if (present := read_mark(path)) == noted:
            raise
        # A server opened or changed the ledger during the check, so its findings may be wrong: check once more.
        return _look(path, present, limit_s)


def _look(path: Path, noted: Mark | None, limit_s: float | None) -> Inspected:
    give_up_at = None if limit_s is None else time.monotonic() + limit_s

    def left_s() -> float | None:
        return None if give_up_at is None else max(0.0, give_up_at - time.monotonic())

    if _is_empty(path):
        _require_new(path, noted)
        return Inspected(None, False)
    try:
        if not _holds_record(path, noted):
            return Inspected(None, False)
        mark = _own_mark(path)
        _check_against_control(path, mark, noted)
        _check_pages(path, mark, noted, "quick_check", left_s())
        _check_rows(path, left_s())
        _check_file(path, mark, noted, left_s())
        # The check compares indexes with their tables, which takes the longest.
        _check_pages(path, mark, noted, "integrity_check", left_s())
    except sqlite3.DatabaseError as error:
        if _is_refusal(error):
            raise
        raise _damaged(path, f"is damaged ({error})", noted, _whole(path)) from error
    return Inspected(mark, noted is None and mark.sequence > 0)


def _require_new(path: Path, noted: Mark | None) -> None:
    """Raise LedgerDamaged unless an empty or missing ledger never had any content."""
    state = "is empty" if path.exists() else "is missing"
    was_there = noted.sequence > 0 if noted is not None else control_path(path).exists()
    if was_there or not _is_empty(log_of(path)):
        raise _damaged(path, state, noted, 0)


def _holds_record(path: Path, noted: Mark | None) -> bool:
    """Return whether a ledger was created in the file.

    Raise LedgerDamaged if a ledger was there and is gone. Raise LedgerError for the file of another program and for a
    ledger of another version.
    """
    with closing(open_unchanged(path)) as connection:
        version = pragma(connection, "user_version")
        application = pragma(connection, "application_id")
        is_created = has_tables(connection)
    if not is_created and noted is not None:
        raise _damaged(path, "is empty", noted, 0)
    if is_created and application != APPLICATION_ID:
        if noted is None:
            raise LedgerError(f"{path} is not a ledger: give another path")
        raise _damaged(path, "is not a ledger any more", noted, _whole(path))
    if is_created and version != SCHEMA_VERSION:
        raise LedgerError(
            f"{path} is a ledger of another version (schema {version}, this version reads schema {SCHEMA_VERSION}):"
            " use the version that wrote it, or give another --home"
        )
    return is_created


def _own_mark(path: Path) -> Mark:
    with closing(open_unchanged(path)) as connection:
        connection.text_factory = bytes
        rows = connection.execute("SELECT ledger_id, sequence, acknowledged FROM marks").fetchall()
    match [tuple(row) for row in rows]:
        case [(bytes(ledger_id), int(sequence), int(acknowledged))]:
            return Mark(ledger_id.decode(errors="replace"), sequence, acknowledged)
        case _:
            raise sqlite3.DatabaseError("its own mark cannot be read")


def _check_against_control(path: Path, mark: Mark, noted: Mark | None) -> None:
    if noted is None:
        return
    if mark.ledger_id != noted.ledger_id:
        raise _damaged(path, "is the ledger of another directory", noted, 0)
    if mark.sequence < noted.sequence:
        what = f"its record ends at commit {mark.sequence:,} of {noted.sequence:,}"
        if noted.closed is None and _is_empty(log_of(path)):
            state = f"is incomplete ({log_of(path).name} is gone) or an older copy: {what}"
        elif noted.closed is None:
            state = f"is incomplete ({log_of(path).name} is damaged, cut, or of another time): {what}"
        else:
            state = f"is an older copy: {what}"
        raise _damaged(path, state, noted, _whole(path))


def _check_pages(path: Path, mark: Mark, noted: Mark | None, check: str, limit_s: float | None) -> None:
    verdict = _ask_sqlite(path, check, limit_s)
    if verdict != "ok":
        raise _damaged(path, f"is damaged ({verdict})", _later(mark, noted), _whole(path))


def _check_rows(path: Path, limit_s: float | None) -> None:
    try:
        counted = count_whole(path, limit_s)
    except OutOfTime:
        return
    if counted.whole != counted.acknowledged:
        expected = Mark("", 0, counted.acknowledged)
        raise _damaged(path, "is damaged: rows of it are not what was written", expected, counted.whole)


def _check_file(path: Path, mark: Mark, noted: Mark | None, limit_s: float | None) -> None:
    """Raise LedgerDamaged if any byte has changed since the file was closed, also where no row or checksum notices."""
    if noted is None or noted.closed is None or noted.sequence != mark.sequence or not _is_empty(log_of(path)):
        return
    present = ClosedFile.of(path, limit_s)
    if present is not None and present != noted.closed:
        raise _damaged(path, "is damaged: it was changed since its server closed it", mark, mark.acknowledged)


def _ask_sqlite(path: Path, check: str, limit_s: float | None) -> str:
    """Return the verdict of SQLite on the file, or "ok" if it has found nothing wrong within the limit."""
    with closing(open_unchanged(path)) as connection:
        if limit_s is None:
            return _last_line(connection.execute(f"PRAGMA {check}(1)").fetchone())
        if limit_s <= 0:
            return "ok"
        began = time.monotonic()
        limit = threading.Timer(limit_s, connection.interrupt)
        limit.start()
        try:
            verdict = _last_line(connection.execute(f"PRAGMA {check}(1)").fetchone())
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
                raise
            return "ok"
        finally:
            limit.cancel()
            limit.join()
    # A check cut off within the tree of a table may report pages that SQLite did not reach as unused.
    return verdict if time.monotonic() - began < limit_s else "ok"


def _last_line(row: tuple[object, ...]) -> str:
    return str(row[0]).splitlines()[-1]


def _whole(path: Path) -> int:
    try:
        return count_whole(path).whole
    except sqlite3.DatabaseError:
        return 0


def _is_refusal(error: sqlite3.Error) -> bool:
    """Return whether the system refused, which tells nothing about the contents of the file."""
    return error.sqlite_errorcode & 0xFF in _REFUSALS


def _later(mark: Mark, noted: Mark | None) -> Mark:
    return mark if noted is None or mark.acknowledged > noted.acknowledged else noted


def _damaged(path: Path, state: str, expected: Mark | None, whole: int | None) -> LedgerDamaged:
    others = name_others(path, None if expected is None else expected.ledger_id)
    if expected is None:
        found = "" if whole is None else f"; {whole:,} are whole"
        return LedgerDamaged.of(path, state, f"{NOT_ON_RECORD}{found}", others)
    gone = max(0, expected.acknowledged - (whole or 0))
    loss = f"{gone:,} of {expected.acknowledged:,} acknowledged episodes are gone"
    return LedgerDamaged.of(path, state, loss, others)


def _is_empty(path: Path) -> bool:
    return not path.exists() or path.stat().st_size == 0


class OutOfTime(Exception):
    """The end of the time limit, before the end of the count and before any damage was found."""


@dataclass(frozen=True, slots=True)
class Counted:
    """The number of episodes that a ledger acknowledged by its own record, and of those that can be read completely.

    The first number is 0 if the ledger has no such record.
    """

    acknowledged: int
    whole: int


def count_whole(path: Path, limit_s: float | None = None) -> Counted:
    """Count acknowledged episodes that can be read with their result, and with their tokens unless those were removed.

    A server may write meanwhile. Raise OutOfTime, or sqlite3.Error if the file cannot be opened at all.
    """
    give_up_at = None if limit_s is None else time.monotonic() + limit_s
    with closing(open_unchanged(path)) as connection:
        # Damaged text may not be UTF-8.
        connection.text_factory = bytes
        connection.execute("BEGIN")
        acknowledged = _acknowledged(connection)
        turns: Counter[Any] = Counter()
        for episode_id, *_ in _intact_rows(connection, "turns", _OF_TURN, 0, give_up_at):
            turns[episode_id] += 1
        whole = 0
        for row in _intact_rows(connection, "episodes", f"{_STATE}, {_OF_RESULT}", 3, give_up_at):
            is_acknowledged, expected, is_compacted, episode_id = row[:4]
            found = turns[episode_id]
            whole += bool(is_acknowledged) and (found == expected or (bool(is_compacted) and not found))
        return Counted(acknowledged, whole)


def _acknowledged(connection: sqlite3.Connection) -> int:
    try:
        return int(connection.execute("SELECT acknowledged FROM marks").fetchone()[0])
    except (sqlite3.DatabaseError, TypeError, ValueError):
        return 0


def _intact_rows(
    connection: sqlite3.Connection, table: str, columns: str, unchecked: int, give_up_at: float | None
) -> Generator[tuple[Any, ...]]:
    """Yield the rows of a table that can be read and are as they were written.

    The first `unchecked` columns have no part in the checksum.
    """
    query = f"SELECT rowid, checksum, {columns} FROM {table} NOT INDEXED WHERE rowid"
    try:
        connection.execute(f"{query} IS NULL")
    except sqlite3.DatabaseError:
        # No query on this table works at all.
        return
    rowid, gap, looked = 0, 0, 0
    while gap < MAX_GAP:
        if give_up_at is not None and looked % ROWS_BETWEEN_LOOKS == 0 and time.monotonic() >= give_up_at:
            raise OutOfTime
        looked += 1
        row = _read(connection, f"{query} > ? ORDER BY rowid LIMIT 1", rowid)
        if row is None:
            return
        if not _passes(row, unchecked):
            # The number of a damaged row may be wrong as well, so the search continues at the next number instead.
            gap, rowid = gap + 1, rowid + 1
            row = _read(connection, f"{query} = ?", rowid)
            if row is None or not _passes(row, unchecked):
                continue
        gap, rowid = 0, row[0]
        yield row[2:]


def _read(connection: sqlite3.Connection, query: str, rowid: int) -> tuple[Any, ...] | None:
    """Return the row, None if there is none, or an empty row if it cannot be read."""
    try:
        return connection.execute(query, (rowid,)).fetchone()
    except sqlite3.DatabaseError:
        return ()


def _passes(row: tuple[Any, ...], unchecked: int) -> bool:
    return bool(row) and is_intact(row[1], row[2 + unchecked :])
