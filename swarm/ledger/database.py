"""The database file: its creation, its lock, and connections to it."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO

from swarm.errors import LedgerError, LedgerInUse
from swarm.ledger.tables import APPLICATION_ID, SCHEMA, SCHEMA_VERSION

# Another process that reads with the sqlite3 shell may lock the file for moments.
BUSY_TIMEOUT_MS = 5000


def open_for_reading(path: Path) -> sqlite3.Connection:
    """Return a connection that cannot write."""
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None, timeout=BUSY_TIMEOUT_MS / 1000
    )
    connection.row_factory = sqlite3.Row
    return connection


@contextmanager
def reading(path: Path) -> Generator[sqlite3.Connection]:
    """Open a connection that cannot write, for a `with` block. Raise LedgerError if the ledger cannot be read."""
    try:
        with closing(open_for_reading(path)) as connection:
            yield connection
    except sqlite3.Error as error:
        raise LedgerError(f"{path} cannot be read: {error}") from error


def open_unchanged(path: Path) -> sqlite3.Connection:
    """Return a connection that leaves no file behind.

    Without a write-ahead log the ledger's file is complete by itself.
    """
    log = log_of(path)
    mode = "mode=ro" if log.exists() and log.stat().st_size else "mode=ro&immutable=1"
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?{mode}", uri=True, isolation_level=None, timeout=BUSY_TIMEOUT_MS / 1000
    )


def log_of(path: Path) -> Path:
    """Return the path of a ledger's write-ahead log."""
    return path.with_name(f"{path.name}-wal")


def lock_of(path: Path) -> Path:
    """Return the path of a ledger's lock file. It contains the id of the process that holds the lock."""
    return path.with_name(f"{path.name}.lock")


def hold_lock(path: Path) -> IO[str]:
    """Lock a ledger for this process until the returned file is closed. The system frees the lock if the process dies.

    Raise LedgerInUse, which names the process that holds the lock, or LedgerError.
    """
    lock_path = lock_of(path)
    try:
        lock_path.parent.mkdir(parents=True, exist_ok=True)
        lock = lock_path.open("a+", encoding="ascii")
    except OSError as error:
        raise LedgerError(f"{lock_path} cannot be opened: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
    except BlockingIOError:
        lock.seek(0)
        holder = lock.read().strip() or "unknown"
        lock.close()
        raise LedgerInUse(
            f"{path} is in use by process {holder}: stop that server with `swarm stop`, or give this one another --home"
        ) from None
    except OSError as error:
        lock.close()
        raise LedgerError(f"{lock_path} cannot be locked: {error.strerror}") from error
    return lock


def connect_writer(path: Path) -> sqlite3.Connection:
    """Return the writer's connection, in autocommit mode, to a file that is new or known to be sound.

    A new file gets its tables.
    """
    # The connection passes to the writer thread, which alone uses it from then on.
    connection = sqlite3.connect(
        path, isolation_level=None, timeout=BUSY_TIMEOUT_MS / 1000, check_same_thread=False, cached_statements=256
    )
    try:
        connection.row_factory = sqlite3.Row
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        if not has_tables(connection):
            _create_tables(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def has_tables(connection: sqlite3.Connection) -> bool:
    """Return whether the file has tables.

    A process that is killed while it creates a ledger may leave a file without tables.
    """
    return connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone() is not None


def _create_tables(connection: sqlite3.Connection) -> None:
    connection.executescript(
        f"BEGIN IMMEDIATE; {SCHEMA} PRAGMA application_id = {APPLICATION_ID};"
        f" PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;"
    )


def pragma(connection: sqlite3.Connection, name: str) -> int:
    """Return the numeric value of a pragma."""
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])
