"""The heartbeat of a client: while it holds leased episodes, the server hears that it lives.

Place in the flow: started by begin_episode of either client, ends by itself when nothing is held any more. A heartbeat
that fails is no error of anybody's: the next one comes, and a lease outlasts two of them. A process that dies, or one
that is stopped, sends none: that is the point.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Sequence

from swarm.client.leases import BEATS_PER_LEASE, Leases
from swarm.errors import SwarmError

logger = logging.getLogger(__name__)

# After a heartbeat that failed: a server that comes back counts the leases from its start.
RETRY_S = 2.0
# One heartbeat may take this long; closing the client waits for it.
BEAT_LIMIT_S = 10.0

Beat = Callable[[Sequence[str]], None]
AsyncBeat = Callable[[Sequence[str]], Awaitable[None]]


class HeartbeatThread:
    """One daemon thread at most. It looks for work once per interval, so short episodes do not start one each."""

    def __init__(self, leases: Leases, beat: Beat) -> None:
        self._leases = leases
        self._beat = beat
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._interval_s = 0.0
        self._is_closed = False

    def keep_alive(self, lease_s: float) -> None:
        """To be called when an episode was begun under this lease."""
        interval_s = lease_s / BEATS_PER_LEASE
        with self._changed:
            if self._is_closed:
                return
            if self._thread is None or not self._thread.is_alive():
                self._interval_s = interval_s
                self._thread = threading.Thread(target=self._run, name="swarm heartbeat", daemon=True)
                self._thread.start()
            elif interval_s < self._interval_s:
                self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(BEAT_LIMIT_S)

    def _run(self) -> None:
        pause_s: float | None = None
        while True:
            with self._changed:
                beating = self._leases.beating()
                if self._is_closed or beating is None:
                    self._thread = None
                    return
                self._interval_s = beating[0]
                if self._changed.wait(self._interval_s if pause_s is None else pause_s):
                    continue
            pause_s = self._send()

    def _send(self) -> float | None:
        """Seconds until the next heartbeat, if sooner than usual."""
        beating = self._leases.beating()
        if beating is None:
            return None
        try:
            self._beat(beating[1])
        except SwarmError as error:
            logger.info("no heartbeat for %d episodes: %s", len(beating[1]), error.message)
            return min(RETRY_S, beating[0])
        return None


class HeartbeatTask:
    """The same as one task of the running event loop."""

    def __init__(self, leases: Leases, beat: AsyncBeat) -> None:
        self._leases = leases
        self._beat = beat
        self._task: asyncio.Task[None] | None = None
        self._sooner = asyncio.Event()
        self._interval_s = 0.0

    def keep_alive(self, lease_s: float) -> None:
        interval_s = lease_s / BEATS_PER_LEASE
        if self._task is None or self._task.done():
            self._interval_s = interval_s
            self._task = asyncio.create_task(self._run(), name="swarm heartbeat")
        elif interval_s < self._interval_s:
            self._sooner.set()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=BEAT_LIMIT_S)

    async def _run(self) -> None:
        pause_s: float | None = None
        while (beating := self._leases.beating()) is not None:
            self._interval_s = beating[0]
            self._sooner.clear()
            try:
                async with asyncio.timeout(self._interval_s if pause_s is None else pause_s):
                    await self._sooner.wait()
                continue
            except TimeoutError:
                pause_s = await self._send()

    async def _send(self) -> float | None:
        beating = self._leases.beating()
        if beating is None:
            return None
        try:
            await self._beat(beating[1])
        except SwarmError as error:
            logger.info("no heartbeat for %d episodes: %s", len(beating[1]), error.message)
            return min(RETRY_S, beating[0])
        return None
