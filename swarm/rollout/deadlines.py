"""When the next running episode must be looked at, and a sleep until the earliest of several such times.

Place in the flow: episodes.py sleeps on the timer until `next_due` and gives up what is `overdue`. The queue holds one
entry per episode, corrected as it comes up: a sign of life only moves a timestamp of its episode, so thousands of
episodes cost nothing until one of them comes due.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Mapping

from swarm.rollout.running import RunningEpisode

SLACK = 1024
"""Entries of ended episodes that may wait in the heap beyond the number of running ones."""


class DeadlineQueue:
    """Times are seconds of the monotonic clock. `running` is the live view of the running episodes by id."""

    def __init__(self, running: Mapping[str, RunningEpisode]) -> None:
        self._running = running
        self._heap: list[tuple[float, str]] = []

    def watch(self, episode: RunningEpisode, due: float) -> None:
        """Look at an episode at `due`; it must not be watched already."""
        heapq.heappush(self._heap, (due, episode.episode_id))
        if len(self._heap) > 2 * len(self._running) + SLACK:
            self._heap = [entry for entry in self._heap if entry[1] in self._running]
            heapq.heapify(self._heap)

    @property
    def next_due(self) -> float | None:
        return self._heap[0][0] if self._heap else None

    def overdue(self, now: float) -> list[tuple[RunningEpisode, str]]:
        """The episodes to give up, with the reason. They are no longer watched; whoever keeps one watches it again."""
        found: list[tuple[RunningEpisode, str]] = []
        while self._heap and self._heap[0][0] <= now:
            _, episode_id = heapq.heappop(self._heap)
            episode = self._running.get(episode_id)
            if episode is None:
                continue
            due, reason = episode.expiry(now)
            if due <= now:
                found.append((episode, reason))
            else:
                heapq.heappush(self._heap, (due, episode_id))
        return found


STALL_S = 2.0
STALL_GRACE_S = 1.0
"""A sleep that took STALL_S longer than planned means that this process stood still: signs of life are waiting to be
read, and get this long before anything is held against anyone."""


class DeadlineTimer:
    """Used from one event loop, by one sleeper."""

    def __init__(self) -> None:
        self._rings_at = 0.0
        self._moved = asyncio.Event()

    def ring_by(self, due: float) -> None:
        """Wake the sleeper no later than `due`."""
        if due < self._rings_at:
            self._rings_at = due
            self._moved.set()

    async def sleep_until(self, due: float) -> None:
        """Returns at `due`, or as soon as `ring_by` has named an earlier time: the caller then plans anew."""
        self._rings_at = due
        self._moved.clear()
        try:
            async with asyncio.timeout(max(0.0, due - time.monotonic())):
                await self._moved.wait()
        except TimeoutError:
            pass
        if time.monotonic() > self._rings_at + STALL_S:
            await asyncio.sleep(STALL_GRACE_S)
