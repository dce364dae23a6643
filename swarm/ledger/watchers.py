"""Who waits for new events: woken by the writer's thread, each in its own event loop.

Place in the flow: between the writer, which calls `notify` after a commit, and the ledger's callers. It knows nothing
of what an event says.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress


class EventWatchers:
    """`notify` is called by one thread, `watch` by any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}
        self._newest = 0

    @contextmanager
    def watch(self) -> Generator[asyncio.Event]:
        """An event that is set when there may be something new; to be used in the running loop."""
        arrived = asyncio.Event()
        with self._lock:
            self._waiting[arrived] = asyncio.get_running_loop()
        try:
            yield arrived
        finally:
            with self._lock:
                del self._waiting[arrived]

    def notify(self, connection: sqlite3.Connection) -> None:
        """Wake those who wait if something was added since the last call. Without them this costs nothing."""
        if not self._waiting:
            return
        newest = connection.execute("SELECT coalesce(max(event_id), 0) FROM events").fetchone()[0]
        if newest == self._newest:
            return
        self._newest = newest
        with self._lock:
            waiting = list(self._waiting.items())
        for arrived, loop in waiting:
            # A loop that was closed meanwhile has nobody left who waits.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(arrived.set)
