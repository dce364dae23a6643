"""Whether a server is to be used: a circuit breaker, closed while it answers, open once it does not.

Place in the flow: each server of a study has one. What asks the server reports to it; the pool reads it before it gives
the server a run, and probes it when it is due. It knows nothing of HTTP.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from enum import StrEnum

FIRST_INTERVAL_S = 1.0
LONGEST_INTERVAL_S = 60.0
"""A server that was away for days is noticed within this time once it is back."""


class BreakerState(StrEnum):
    """CLOSED: it answers. OPEN: it does not, and is left alone until a probe is due. HALF_OPEN: it is being probed."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class CircuitBreaker:
    """Any number of threads. `clock` is in seconds."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._state = BreakerState.CLOSED
        self._interval_s = FIRST_INTERVAL_S
        self._opened_at = self._failed_at = 0.0
        self.reason = ""
        """What the last failure was."""

    @property
    def state(self) -> BreakerState:
        return self._state

    @property
    def is_closed(self) -> bool:
        return self._state is BreakerState.CLOSED

    def out_s(self) -> float:
        """For how long it has not been closed."""
        with self._lock:
            return 0.0 if self.is_closed else self._clock() - self._opened_at

    def fail(self, reason: str) -> bool:
        """It did not answer. A failed probe doubles the time to the next one; what is heard of an open one changes
        only the reason. Returns whether this has opened it."""
        with self._lock:
            was, self.reason = self._state, reason
            if was is BreakerState.OPEN:
                return False
            self._state = BreakerState.OPEN
            self._failed_at = self._clock()
            if was is BreakerState.CLOSED:
                self._opened_at, self._interval_s = self._failed_at, FIRST_INTERVAL_S
            else:
                self._interval_s = min(2 * self._interval_s, LONGEST_INTERVAL_S)
            return was is BreakerState.CLOSED

    def succeed(self) -> bool:
        """It answered. Returns whether this has closed it."""
        with self._lock:
            was, self._state = self._state, BreakerState.CLOSED
            return was is not BreakerState.CLOSED

    def begin_probe(self) -> bool:
        """Whether a probe is due; it is half-open then, until the probe's result is reported."""
        with self._lock:
            if self._state is not BreakerState.OPEN or self._clock() < self._failed_at + self._interval_s:
                return False
            self._state = BreakerState.HALF_OPEN
            return True

    def due_in_s(self) -> float:
        """Until the next probe; 0 if it is due, or if none is needed."""
        with self._lock:
            if self._state is not BreakerState.OPEN:
                return 0.0
            return max(0.0, self._failed_at + self._interval_s - self._clock())
