"""Connections and transactions of a SQLite file or a PostgreSQL database, and the meaning of their errors."""

from __future__ import annotations

import errno
import json
import sqlite3
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from threading import Lock
from typing import Any

from filelock import FileLock, Timeout
from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, IntegrityError, SQLAlchemyError, StatementError

from experiments_db.errors import InvalidRecord, NotAStore, ReadOnlyStore, RecordNotFound, StoreError, StoreUnavailable

BUSY_TIMEOUT_S = 30.0
"""How long a writer waits for another before it gives up: well above the longest transaction, a batch of metrics."""

LOCK_POLL_S = 0.005
DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
PASSING_CODES = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PROTOCOL,
    }
)
"""What SQLite says of a lock, a full disk, and files that cannot be made or written because of one."""
PASSING_STATES = ("53", "55", "57")
"""Classes of PostgreSQL's states: too few resources, an object in use, the intervention of an operator."""
CONNECT_TIMEOUT_S = 10
STATEMENT_TIMEOUT_MS = 60_000

SQLITE_HEADER = b"SQLite format 3\x00"


class Database:
    """An engine with its write lock. `path` is the file of a SQLite database, None for PostgreSQL.

    SQLite runs in WAL mode, so that readers never wait for the writer. `synchronous=FULL` makes acknowledged writes
    survive a power cut: a study commits rarely and its runs are expensive. A lock file beside the database allows one
    writer at a time, across processes. It also keeps two connections from writing and checkpointing at once: SQLite
    before 3.51.3 may then damage the file (the WAL-reset bug, sqlite.org/wal.html).
    """

    def __init__(self, engine: Engine, *, path: Path | None, read_only: bool) -> None:
        self.engine = engine
        self.path = path
        self.read_only = read_only
        self._lock = None if path is None or read_only else FileLock(f"{path}.lock")
        self._observer: Connection | None = None
        self._observing = Lock()

    @property
    def is_sqlite(self) -> bool:
        return self.path is not None

    def __str__(self) -> str:
        return str(self.path) if self.path else self.engine.url.render_as_string(hide_password=True)

    @contextmanager
    def read(self) -> Generator[Connection]:
        """Open a transaction that sees one state of the database and changes nothing."""
        with self._translated(), self.engine.connect() as connection:
            yield connection

    @contextmanager
    def write(self) -> Generator[Connection]:
        """Open a transaction that is committed at the end of the block and rolled back on any error.

        Raises ReadOnlyStore, StoreUnavailable (busy, full, damaged, unreachable) and InvalidRecord.
        """
        if self.read_only:
            raise ReadOnlyStore(f"{self} was opened for reading; open it for writing to change it")
        with (
            self._translated(),
            self._writer(),
            self.engine.connect().execution_options(begin_immediate=True) as connection,
            connection.begin(),
        ):
            yield connection

    def read_version(self) -> str:
        """Return a text that differs from the one before if another connection has committed a change in between.

        It costs no look into a table. PostgreSQL's text differs also for changes of other databases of the server.
        """
        with self._translated(), self._observing:
            if self._observer is None:
                # SQLite counts the changes by others for each connection, so that it is always the same one.
                self._observer = self.engine.connect()
            try:
                question = "PRAGMA data_version" if self.is_sqlite else "SELECT pg_current_snapshot()"
                return str(self._observer.exec_driver_sql(question).scalar_one())
            finally:
                # A transaction left open would go on seeing the same state.
                self._observer.rollback()

    def enable_wal(self) -> None:
        """Set the journal mode, which stays with a SQLite file. It is not part of any transaction."""
        if not self.is_sqlite:
            return
        with self._translated(), self._writer(), self.engine.connect() as connection:
            driver_connection: Any = connection.connection.driver_connection
            driver_connection.execute("PRAGMA journal_mode=WAL")

    def close(self) -> None:
        # The last connection of a SQLite file writes the WAL back: one writer at a time there, too.
        with self._translated(), self._writer(), self._observing:
            if self._observer is not None:
                self._observer.close()
                self._observer = None
            self.engine.dispose()

    def _writer(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._lock is None else self._locked(self._lock)

    @contextmanager
    def _locked(self, lock: FileLock) -> Generator[None]:
        try:
            lock.acquire(timeout=BUSY_TIMEOUT_S, poll_interval=LOCK_POLL_S)
        except Timeout as error:
            raise StoreUnavailable(
                f"another process has been writing to {self} for {BUSY_TIMEOUT_S:.0f} s; try again when it is done",
                may_pass=True,
            ) from error
        except OSError as error:
            raise StoreUnavailable(
                f"cannot lock {self} for writing: {error.strerror or error}", may_pass=error.errno in DISK_FULL
            ) from error
        try:
            yield
        finally:
            lock.release()

    @contextmanager
    def _translated(self) -> Generator[None]:
        try:
            yield
        except SQLAlchemyError as error:
            raise _translate(error, str(self)) from error
        except (UnicodeEncodeError, OverflowError) as error:
            # The SQLite driver raises these as they are: half a surrogate pair, an integer of more than 64 bits.
            raise InvalidRecord(f"a value cannot be stored: {error}") from error


def connect(location: str | Path, *, read_only: bool) -> Database:
    """Return a database at `location`, a file path or a URL.

    Nothing is stored yet, but a missing folder is made.

    Raises InvalidRecord for an impossible location and RecordNotFound for reading a file that does not exist. Raises
    NotAStore for a file that is no SQLite database and StoreUnavailable for one that cannot be used.
    """
    url = _parse_location(location)
    if url.get_backend_name() == "postgresql":
        return Database(_postgresql_engine(url, read_only=read_only), path=None, read_only=read_only)
    path = Path(str(url.database)).absolute()
    _check_file(path, read_only=read_only)
    return Database(_sqlite_engine(path, read_only=read_only), path=path, read_only=read_only)


def _parse_location(location: str | Path) -> URL:
    text = str(location)
    if not text.strip():
        raise InvalidRecord("the database location is empty: give a file path or a postgresql:// URL")
    if "://" not in text:
        return URL.create("sqlite", database=str(Path(text).expanduser()))
    try:
        url = make_url(text)
        backend = url.get_backend_name()
    except (ArgumentError, ValueError) as error:
        # The text may hold a password, so it is not repeated.
        raise InvalidRecord("the database location is no valid URL: give a file path or a postgresql:// URL") from error
    if backend not in ("sqlite", "postgresql"):
        raise InvalidRecord(f"{backend} databases are not supported: give a file path or a postgresql:// URL")
    if backend == "sqlite" and url.database in (None, "", ":memory:"):
        raise InvalidRecord("an in-memory database is lost with its process: give a file path")
    return url


def _check_file(path: Path, *, read_only: bool) -> None:
    try:
        if path.exists():
            with path.open("rb") as file:
                header = file.read(len(SQLITE_HEADER))
            if header and header != SQLITE_HEADER:
                raise NotAStore(f"{path} is not a SQLite database; give the path of another file")
        elif read_only:
            raise RecordNotFound(f"there is no database at {path}; start a study to create it")
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreUnavailable(f"cannot use {path} as a database: {error.strerror or error}") from error


def _sqlite_engine(path: Path, *, read_only: bool) -> Engine:
    url = URL.create(
        "sqlite+pysqlite",
        database=path.as_uri(),
        query={"mode": "ro" if read_only else "rwc", "uri": "true"},
    )
    engine = create_engine(url, json_serializer=_dump_json, connect_args={"timeout": BUSY_TIMEOUT_S})
    event.listen(engine, "connect", _configure_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _configure_sqlite(connection: sqlite3.Connection, _: object) -> None:
    # The driver's own transaction control would leave schema changes and reads outside any transaction.
    connection.isolation_level = None
    connection.execute("PRAGMA foreign_keys=ON")
    connection.execute("PRAGMA synchronous=FULL")


def _begin_sqlite(connection: Any) -> None:
    # A transaction that reads first and writes later may be refused midway; taking the write lock at once cannot.
    immediate = connection.get_execution_options().get("begin_immediate", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")


def _postgresql_engine(url: URL, *, read_only: bool) -> Engine:
    options = f"-c statement_timeout={STATEMENT_TIMEOUT_MS} -c lock_timeout={int(BUSY_TIMEOUT_S * 1000)}"
    if read_only:
        options += " -c default_transaction_read_only=on"
    # Options of the URL come last, so they win.
    given = url.query.get("options", ())
    options = " ".join((options, *((given,) if isinstance(given, str) else given)))
    if url.drivername == "postgresql":
        url = url.set(drivername="postgresql+psycopg")
    try:
        return create_engine(
            url,
            json_serializer=_dump_json,
            pool_pre_ping=True,
            connect_args={"connect_timeout": CONNECT_TIMEOUT_S, "options": options},
        )
    except ModuleNotFoundError as error:
        raise StoreUnavailable(f"PostgreSQL needs the Python package {error.name}; install it and try again") from error


def _dump_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _translate(error: SQLAlchemyError, name: str) -> StoreError:
    if isinstance(error, IntegrityError):
        return InvalidRecord(f"the database refused the record: {_one_line(error.orig)}")
    if isinstance(error, DBAPIError):
        if "readonly" in str(error.orig) or "read-only" in str(error.orig):
            return ReadOnlyStore(f"{name} cannot be written: {_one_line(error.orig)}")
        if isinstance(error, DataError) or "binding parameter" in str(error.orig):
            return InvalidRecord(f"a value cannot be stored: {_one_line(error.orig)}")
        return StoreUnavailable(f"{name} is not usable: {_one_line(error.orig)}", may_pass=_may_pass(error))
    if isinstance(error, StatementError):
        return InvalidRecord(f"a value cannot be stored: {_one_line(error.orig)}")
    return StoreUnavailable(f"{name} is not usable: {_one_line(error)}")


def _may_pass(error: DBAPIError) -> bool:
    """Return whether the failure is temporary by the database's error code."""
    if isinstance(error.orig, sqlite3.Error):
        # The lower byte is the kind, the rest its variety (sqlite.org/rescode.html).
        return isinstance(error.orig, sqlite3.OperationalError) and error.orig.sqlite_errorcode & 0xFF in PASSING_CODES
    state = str(getattr(error.orig, "sqlstate", None) or "")
    return error.connection_invalidated or state.startswith(PASSING_STATES)


def _one_line(error: BaseException | None) -> str:
    return " ".join(str(error).split())
