"""The place of an open ledger. Files that are moved, replaced or deleted meanwhile are noticed and kept complete."""

from __future__ import annotations

import logging
import os
import shlex
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

from swarm.ledger.database import log_of, open_unchanged
from swarm.ledger.tables import APPLICATION_ID

logger = logging.getLogger(__name__)

LOG_LOOK_S = 0.1
"""The time between two looks at the log. No commit needs one, since the open log stays whole without its path."""

RESCUED = "rescued"
_HEADER = b"SQLite format 3\0"
_APPLICATION_ID_AT = 68
_CUT = "was cut or overwritten"


class LedgerPlace:
    """The device and inode of an open ledger and of its write-ahead log, which must stay at their paths.

    SQLite goes on writing to a file that was moved or deleted, so a look at the paths is the only way to notice it.
    """

    def __init__(self, path: Path) -> None:
        """Note the files as they are. Raise OSError."""
        self._path, self._log = path, log_of(path)
        found = os.stat(path)
        self._ledger_id, self._size = (found.st_dev, found.st_ino), found.st_size
        found = os.stat(self._log)
        self._log_id = found.st_dev, found.st_ino
        self._log_seen_at = time.monotonic()
        self._kept: str | None = None

    def look(self) -> str | None:
        """Return what has happened to the files, or None while they are in their place."""
        # The file never shrinks while it is open.
        if (fault := self._differs(self._path, self._ledger_id, self._size)) is not None:
            return fault
        now = time.monotonic()
        if now - self._log_seen_at < LOG_LOOK_S:
            return None
        fault = self._differs(self._log, self._log_id, 0)
        if fault is None:
            self._log_seen_at = now
        return fault

    def _differs(self, path: Path, identity: tuple[int, int], size: int) -> str | None:
        try:
            found = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return f"{path} was moved or deleted"
        except OSError as error:
            return f"{path} cannot be reached ({error.strerror})"
        if (found.st_dev, found.st_ino) != identity:
            return f"{path} was replaced by another file"
        if found.st_size < size:
            return f"{path} {_CUT}"
        if size:
            self._size = found.st_size
        return None

    def advise(self, fault: str, connection: sqlite3.Connection) -> str:
        """Keep the ledger complete in one file, once, and return what to do about a fault that `look` has found."""
        if _CUT in fault:
            return "stop the server and put a backup back"
        if self._kept is None:
            try:
                self._kept = self._keep(connection)
            except (sqlite3.Error, OSError) as error:
                logger.error("%s cannot be kept complete: %s", self._path, error)
                return "put it back"
        return self._kept

    def forget(self) -> None:
        """Forget the advice, because the files are in their place."""
        self._kept = None

    def _keep(self, connection: sqlite3.Connection) -> str:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        present = self._find()
        if present == self._path:
            return f"{present} has all that was acknowledged: start the server again"
        if present is None and self._path.parent.is_dir():
            # It may be deleted, and then its content is lost as soon as this process ends.
            present = self._path.with_name(f"{self._path.name}.{RESCUED}-{time.strftime('%Y%m%d-%H%M%S')}")
            with closing(sqlite3.connect(present)) as copy:
                connection.backup(copy)
            return f"{present} is a copy of all that was acknowledged: put it back, or stop the server and rename this"
        command = "" if present is None else f" ({_move(present, self._path)})"
        return f"put it back{command}, and the server goes on"

    def _find(self) -> Path | None:
        """Return where the ledger's file is now in its folder, or None."""
        with suppress(OSError), os.scandir(self._path.parent) as entries:
            for entry in entries:
                found = entry.stat()
                if (found.st_dev, found.st_ino) == self._ledger_id:
                    return self._path.with_name(entry.name)
        return None


def name_others(path: Path, ledger_id: str | None = None) -> str | None:
    """Return a sentence about the largest other ledger in the folder of `path`, or None without any.

    With a `ledger_id`, only copies of that ledger count.
    """
    found = [(count, each) for each in _files_beside(path) if (count := _acknowledged(each, ledger_id)) is not None]
    if not found:
        return None
    count, largest = max(found)
    of = "a ledger" if ledger_id is None else "a copy of it"
    return f"{largest.name} beside it is {of} with {count:,} acknowledged episodes ({_move(largest, path)})"


def _files_beside(path: Path) -> Iterator[Path]:
    with suppress(OSError), os.scandir(path.parent) as entries:
        for entry in entries:
            if entry.is_file() and entry.name != path.name and _is_ledger(Path(entry.path)):
                yield path.with_name(entry.name)


def _is_ledger(path: Path) -> bool:
    """Return whether a file has the header of a ledger."""
    try:
        with path.open("rb") as file:
            start = file.read(_APPLICATION_ID_AT + 4)
    except OSError:
        return False
    return start.startswith(_HEADER) and start[_APPLICATION_ID_AT:] == APPLICATION_ID.to_bytes(4, "big")


def _acknowledged(path: Path, ledger_id: str | None) -> int | None:
    """Return the number of acknowledged episodes of a ledger, or None if it cannot be read or has another id."""
    try:
        with closing(open_unchanged(path)) as connection:
            own_id, count = connection.execute("SELECT ledger_id, acknowledged FROM marks").fetchone()
    except (sqlite3.Error, OSError, TypeError):
        return None
    return count if isinstance(count, int) and ledger_id in {None, own_id} else None


def _move(source: Path, target: Path) -> str:
    return f"mv {shlex.quote(str(source))} {shlex.quote(str(target))}"
