"""The running episodes of a client, and the heartbeats that renew their leases.

Place in the flow: the plans record which episodes begin and end. `begin_episode` of either client starts the
heartbeats, and they stop by themselves when no episode has a lease. The answer to a heartbeat carries the server's
warnings and the episodes that it has aborted. A failed heartbeat is no error, because a lease outlasts two of them. A
process that is dead or stopped sends none, so the server can free its episodes. This module knows nothing of HTTP.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from swarm.errors import SwarmError

DEFAULT_LEASE_S = 30.0
# So a lease outlasts two lost heartbeats.
BEATS_PER_LEASE = 3
# The reasons of so many lost episodes are kept; for an older one the client asks the server.
MAX_REMEMBERED = 10_000


@dataclass(slots=True)
class _Lease:
    """A running episode. Without a `lease_s` it needs no heartbeat. `is_ending` is True once its result was sent."""

    lease_s: float | None
    is_ending: bool = False


class Leases:
    """The running episodes of one client, as far as it knows, with their leases. Safe to use from threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[str, _Lease] = {}
        self._lost: OrderedDict[str, str] = OrderedDict()
        self._heard: set[str] = set()

    def hold(self, episode_id: str, lease_s: float | None) -> None:
        with self._lock:
            self._running[episode_id] = _Lease(lease_s)

    def holds(self, episode_id: str) -> bool:
        return episode_id in self._running

    def lost(self, episode_id: str) -> str | None:
        """Return why the server has aborted this episode, or None if the client does not know that it has."""
        return self._lost.get(episode_id)

    def end(self, episode_id: str) -> None:
        """Mark an episode whose result is being sent: a heartbeat's `ended` may now be due to that very call."""
        with self._lock:
            if lease := self._running.get(episode_id):
                lease.is_ending = True

    def release(self, episode_id: str) -> None:
        with self._lock:
            self._running.pop(episode_id, None)

    def lose(self, ended: Mapping[str, str]) -> list[str]:
        """Record the aborted episodes from the answer to a heartbeat; return those that were still running here."""
        lost: list[str] = []
        with self._lock:
            for episode_id, reason in ended.items():
                lease = self._running.get(episode_id)
                if lease is not None and not lease.is_ending:
                    del self._running[episode_id]
                    self._lost[episode_id] = reason
                    lost.append(episode_id)
            while len(self._lost) > MAX_REMEMBERED:
                self._lost.popitem(last=False)
        return lost

    def unheard(self, warnings: Mapping[str, str]) -> list[str]:
        """Return the messages of new warnings. `warnings` maps codes to messages; an earlier code is not new."""
        with self._lock:
            new = [message for code, message in warnings.items() if code not in self._heard]
            self._heard.update(warnings)
        return new

    def beating(self) -> tuple[float, list[str]] | None:
        """Return the seconds between heartbeats and the episodes that need them, or None if no episode does."""
        with self._lock:
            leases = {
                episode_id: lease.lease_s for episode_id, lease in self._running.items() if lease.lease_s is not None
            }
        if not leases:
            return None
        return min(leases.values()) / BEATS_PER_LEASE, list(leases)


logger = logging.getLogger(__name__)

# The pause after a failed heartbeat. It is short, because a restarted server counts the leases from its start.
RETRY_S = 2.0
# The limit of one heartbeat, and of the wait for it when the client is closed.
BEAT_LIMIT_S = 10.0

Beat = Callable[[Sequence[str]], None]
AsyncBeat = Callable[[Sequence[str]], Awaitable[None]]


class HeartbeatThread:
    """The heartbeats of a SwarmClient: at most one daemon thread.

    The thread looks for episodes once per interval, so short episodes do not each start a thread.
    """

    def __init__(self, leases: Leases, beat: Beat) -> None:
        self._leases = leases
        self._beat = beat
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._interval_s = 0.0
        self._is_closed = False

    def keep_alive(self, lease_s: float) -> None:
        """Start the heartbeats, or shorten their interval, for an episode that has begun with this lease."""
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
        """Send one heartbeat; return the seconds until the next one if it is due sooner than usual."""
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
    """The heartbeats of an AsyncSwarmClient: at most one task of the running event loop."""

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
