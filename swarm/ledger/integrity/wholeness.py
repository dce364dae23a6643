"""The count of episodes that can be read completely: their result, and every token that was recorded."""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swarm.ledger.database import open_unchanged
from swarm.ledger.tables import ACKNOWLEDGED, RESULT_COLUMNS, TURNS, is_intact

MAX_GAP = 10_000
"""The most row numbers in a row without a readable row; after them the rest of a table is given up. A broken page that
points to others hides some thousands."""

ROWS_BETWEEN_LOOKS = 500
"""Rows between two looks at the clock, since one look costs as much as a row."""

_OF_RESULT = ", ".join(RESULT_COLUMNS)
_OF_TURN = ", ".join(TURNS.columns)
_STATE = f"state IN {ACKNOWLEDGED}, turns, is_compacted"


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
