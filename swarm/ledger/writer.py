"""The one thread that changes the database, and the watchers of events."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from swarm.errors import LedgerError, LedgerUnwritable, SwarmError
from swarm.ledger.integrity.control import SYNC_EVERY_S
from swarm.ledger.integrity.opening import OpenLedger

logger = logging.getLogger(__name__)

T = TypeVar("T")
Operation = Callable[[sqlite3.Connection], T]

# The limit bounds the time of one transaction, and so the wait of the first operation in it.
MAX_GROUP = 1000
CLOSE_TIMEOUT_S = 30.0

# Errors of a single operation. Every other sqlite3.Error concerns the file and so the whole group.
_OWN_ERRORS = (sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.DataError)


@dataclass(frozen=True, slots=True)
class CommitCount:
    """The number of transactions on disk and of writes in them.

    `seconds` is their total time from begin to commit.
    """

    commits: int = 0
    writes: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class _Pending:
    operation: Operation[Any]
    future: asyncio.Future[Any]
    result: Any = None
    error: SwarmError | None = None


class Writer:
    """The owner of the open ledger, from construction to `close`."""

    def __init__(self, opened: OpenLedger, on_commit: Callable[[sqlite3.Connection], None] = lambda _: None) -> None:
        """Start the thread. It calls `on_commit` after every commit, before any caller is answered."""
        self._opened = opened
        self._connection = opened.connection
        self._on_commit = on_commit
        self._queue: SimpleQueue[_Pending | None] = SimpleQueue()
        self._closing = threading.Lock()
        self._closed = False
        self.count = CommitCount()
        self._thread = threading.Thread(target=self._run, name="ledger-writer", daemon=True)
        self._thread.start()

    def submit(self, operation: Operation[T]) -> asyncio.Future[T]:
        """Return a future that ends once the operation is on disk, or with the SwarmError that prevented that.

        The future belongs to the running loop; any thread's loop will do. An operation whose future is cancelled or
        given an error before its turn comes is left out. Raise LedgerError if the ledger is closed.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        with self._closing:
            if self._closed:
                raise LedgerError("the ledger is closed")
            self._queue.put(_Pending(operation, future))
        return future

    def require_place(self) -> None:
        """Raise LedgerError unless the files are where they were opened, so that no other file is read instead."""
        if (fault := self._opened.place.look()) is not None:
            raise LedgerError(f"{fault} while the server runs: put it back, or stop the server")

    def close(self) -> None:
        """Finish what was submitted, then close the ledger's file. Do nothing if it is closed."""
        with self._closing:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
        self._thread.join(CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        is_open = True
        while is_open:
            group, is_open = self._next_group()
            self._commit(group)
        self._opened.close()

    def _next_group(self) -> tuple[list[_Pending], bool]:
        group: list[_Pending] = []
        pending = self._next()
        while pending is not None:
            if not pending.future.done():
                group.append(pending)
            if len(group) >= MAX_GROUP:
                return group, True
            try:
                pending = self._queue.get_nowait()
            except Empty:
                return group, True
        return group, False

    def _next(self) -> _Pending | None:
        """Return the next operation. In a pause, flush the control file to disk, and look for the ledger's file.

        A file that was moved during the last commit then gets what is in the log.
        """
        control = self._opened.control
        while control.is_behind:
            try:
                return self._queue.get(timeout=SYNC_EVERY_S)
            except Empty:
                control.sync()
                self._find_fault()
        return self._queue.get()

    def _commit(self, group: list[_Pending]) -> None:
        if not group:
            return
        connection = self._connection
        began, changes_before = time.perf_counter(), connection.total_changes
        counted: tuple[int, int] | None = None
        try:
            connection.execute("BEGIN IMMEDIATE")
            for pending in group:
                self._attempt(pending)
            if connection.total_changes != changes_before:
                counted = self._opened.count()
            if self._opened.place.look() is not None:
                self._give_up(group, None)
                return
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            self._give_up(group, error)
            return
        if counted is not None:
            # The note comes between commit and answer, so every acknowledged write is in the control file.
            self._opened.control.note(*counted)
        count, seconds = self.count, time.perf_counter() - began
        self.count = CommitCount(count.commits + 1, count.writes + len(group), count.seconds + seconds)
        try:
            self._on_commit(connection)
        except sqlite3.Error:
            logger.exception("what was stored could not be announced")
        _answer(group)

    def _find_fault(self) -> str | None:
        """Return what has happened to the ledger's files and what to do, or None while they are in their place."""
        place = self._opened.place
        if (fault := place.look()) is None:
            place.forget()
            return None
        advice = place.advise(fault, self._connection)
        return f"{fault} while the server runs: nothing was stored; {advice}"

    def _attempt(self, pending: _Pending) -> None:
        """Run one operation. Its own failure undoes it alone; a failure of the file (sqlite3.Error) is passed on."""
        connection = self._connection
        pending.result, pending.error = None, None
        connection.execute("SAVEPOINT operation")
        try:
            pending.result = pending.operation(connection)
        except SwarmError as error:
            pending.error = error
        except Exception as error:
            if isinstance(error, sqlite3.Error) and not isinstance(error, _OWN_ERRORS):
                raise
            pending.error = LedgerError(f"refused by the ledger: {type(error).__name__}: {error}")
            pending.error.__cause__ = error
        if pending.error is not None:
            connection.execute("ROLLBACK TO operation")
        connection.execute("RELEASE operation")

    def _give_up(self, group: list[_Pending], error: sqlite3.Error | None) -> None:
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            logger.exception("the ledger cannot roll back")
        why = error or "its file was away for a moment"
        reason = self._find_fault() or f"the ledger cannot write ({why}): nothing was stored; free space and try again"
        logger.error("%s", reason)
        for pending in group:
            pending.error = LedgerUnwritable(reason)
            pending.error.__cause__ = error
        _answer(group)


def _answer(group: Sequence[_Pending]) -> None:
    of_loop: dict[asyncio.AbstractEventLoop, list[_Pending]] = {}
    for pending in group:
        of_loop.setdefault(pending.future.get_loop(), []).append(pending)
    for loop, done in of_loop.items():
        # A loop that was closed meanwhile has no waiting caller left.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(_settle, done)


def _settle(done: Sequence[_Pending]) -> None:
    for pending in done:
        # The caller may have given up meanwhile.
        if pending.future.done():
            continue
        if pending.error is not None:
            pending.future.set_exception(pending.error)
        else:
            pending.future.set_result(pending.result)


class EventWatchers:
    """The tasks that wait for events. One thread calls `notify`, any thread `watch`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}
        self._newest = 0

    @contextmanager
    def watch(self) -> Generator[asyncio.Event]:
        """Yield an asyncio event that is set when there may be new events. It belongs to the running loop."""
        arrived = asyncio.Event()
        with self._lock:
            self._waiting[arrived] = asyncio.get_running_loop()
        try:
            yield arrived
        finally:
            with self._lock:
                del self._waiting[arrived]

    def notify(self, connection: sqlite3.Connection) -> None:
        """Wake the watchers if an event was added since the last call. Without watchers this costs nothing."""
        if not self._waiting:
            return
        newest = connection.execute("SELECT coalesce(max(event_id), 0) FROM events").fetchone()[0]
        if newest == self._newest:
            return
        self._newest = newest
        with self._lock:
            waiting = list(self._waiting.items())
        for arrived, loop in waiting:
            # A loop that was closed meanwhile has no watcher left.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(arrived.set)
