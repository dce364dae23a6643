"""When the next running episode must be looked at: one entry per episode in a heap, corrected as it comes up.

Place in the flow: episodes.py sleeps until `next_due` and gives up what is `overdue`. A sign of life only moves a
timestamp of its episode, so thousands of episodes cost nothing until one of them comes due.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping

from swarm.rollout.running import RunningEpisode

SLACK = 1024
"""Entries of ended episodes that may wait in the heap beyond the number of running ones."""


class LeaseQueue:
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
