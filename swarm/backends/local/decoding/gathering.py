"""The start of requests that arrive one after the other in common passes, because a larger pass costs little more.

Place in the flow: operations.py notes each arriving request, and asks before each step whether the waiting requests may
begin. Clients on the same machine send their next requests one by one. If each began at once, most passes would run for
two or three requests, and would take the CPU time that those clients need. A request may therefore wait a moment for
others, but only for half as many as were recently present at once. The other half is then with the clients, and neither
side waits for the other. A request without company begins at once. This module knows nothing of models or of messages.
"""

from __future__ import annotations

import time
from collections.abc import Callable

MOST_AWAITED = 32
"""With this many rows, a fuller pass costs hardly less per row, even for a model as small as the bundled one."""
LONGEST_WAIT_S = 0.05
"""No request waits longer than this for others. A reader sees no difference."""
SHORTEST_SILENCE_S = 0.01
"""No request waits once this time has passed since the latest arrival: the missing clients are busy elsewhere. On a
busy machine requests arrive more slowly, and only a silence of `GAPS_OF_SILENCE` usual gaps counts."""
GAPS_OF_SILENCE = 4.0
NEWEST_GAP = 0.1
"""Weight of the newest gap in the average gap."""
WINDOW_S = 1.0
"""The number of requests present at once is remembered for one to two times this long."""


class Gathering:
    """Counter of the requests that have arrived since the last ones began."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pending = 0
        self._first_at = self._latest_at = 0.0
        self._gap_s = 0.0
        self._window_until = 0.0
        self._most, self._most_before = 0, 0

    def arrived(self, present: int) -> None:
        """Record that a request has arrived; `present` counts all waiting and running requests, with this one."""
        now = self._clock()
        if now >= self._window_until:
            is_recent = now < self._window_until + WINDOW_S
            self._most, self._most_before = 0, self._most if is_recent else 0
            self._window_until = now + WINDOW_S
        self._most = max(self._most, present)
        if not self._pending:
            self._first_at = now
        else:
            self._gap_s += NEWEST_GAP * (now - self._latest_at - self._gap_s)
        self._pending += 1
        self._latest_at = now

    def begun(self) -> None:
        """Record that the arrived requests have begun."""
        self._pending = 0

    def wait_s(self, waiting: int) -> float:
        """Return how much longer the `waiting` requests may wait for another one, in seconds; 0 means begin now."""
        # If requests are left over from the last start, the batch is full, so there is no reason to wait.
        if not self._pending or waiting > self._pending or self._pending >= self._awaited:
            return 0.0
        silence_s = max(SHORTEST_SILENCE_S, GAPS_OF_SILENCE * self._gap_s)
        return max(0.0, min(self._first_at + LONGEST_WAIT_S, self._latest_at + silence_s) - self._clock())

    @property
    def _awaited(self) -> int:
        return min(MOST_AWAITED, max(self._most, self._most_before) // 2)
