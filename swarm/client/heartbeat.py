"""The running episodes of a client, and the heartbeats that renew their leases."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from swarm.client.io import BackgroundWorker
from swarm.errors import SwarmError

logger = logging.getLogger(__name__)

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


# The pause after a failed heartbeat. It is short, because a restarted server counts the leases from its start.
RETRY_S = 2.0
# The limit of one heartbeat, and of the wait for it when the client is closed.
BEAT_LIMIT_S = 10.0


class Heartbeats:
    """The heartbeats of one client, sent by at most one worker.

    The worker looks for episodes once per interval, so short episodes do not each start one.

    A failed heartbeat is no error, because a lease outlasts two of them.
    """

    def __init__(
        self, leases: Leases, beat: Callable[[Sequence[str]], Awaitable[None]], worker: BackgroundWorker
    ) -> None:
        self._leases = leases
        self._beat = beat
        self._worker = worker
        self._lock = threading.Lock()
        self._interval_s = 0.0
        self._is_over = True
        self._is_closed = False

    def keep_alive(self, lease_s: float) -> None:
        """Start the heartbeats, or shorten their interval, for an episode that has begun with this lease."""
        interval_s = lease_s / BEATS_PER_LEASE
        with self._lock:
            if self._is_closed:
                return
            if self._is_over or not self._worker.is_alive:
                self._is_over, self._interval_s = False, interval_s
                self._worker.start(self._run)
            elif interval_s < self._interval_s:
                self._worker.wake()

    async def close(self) -> None:
        with self._lock:
            self._is_closed = True
        await self._worker.stop(BEAT_LIMIT_S)

    async def _run(self) -> None:
        pause_s: float | None = None
        while True:
            with self._lock:
                beating = self._leases.beating()
                self._is_over = self._is_closed or beating is None
                if self._is_over or beating is None:
                    return
                self._interval_s = beating[0]
            if not await self._worker.pause(self._interval_s if pause_s is None else pause_s):
                pause_s = await self._send()

    async def _send(self) -> float | None:
        """Send one heartbeat; return the seconds until the next one if it is due sooner than usual."""
        beating = self._leases.beating()
        if beating is None:
            return None
        try:
            await self._beat(beating[1])
        except SwarmError as error:
            logger.info("no heartbeat for %d episodes: %s", len(beating[1]), error.message)
            return min(RETRY_S, beating[0])
        return None
