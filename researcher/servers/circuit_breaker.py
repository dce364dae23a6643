"""A circuit breaker for one server: closed while the server answers, open once it does not.

Place in the flow: each server of a study has one breaker. Whoever sends a request reports the result to it. The server
pool reads it before it gives the server a run, and probes the server when a probe is due. This module knows nothing of
HTTP.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from enum import StrEnum

FIRST_INTERVAL_S = 1.0
LONGEST_INTERVAL_S = 60.0
"""The longest time between two probes, so that a server is noticed within it even after days of absence."""


class BreakerState(StrEnum):
    """The state of a circuit breaker.

    CLOSED: the server answers. OPEN: it does not, and nobody asks it until a probe is due. HALF_OPEN: a probe is under
    way.
    """

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class CircuitBreaker:
    """A thread-safe circuit breaker; `clock` returns seconds."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._state = BreakerState.CLOSED
        self._interval_s = FIRST_INTERVAL_S
        self._opened_at = self._failed_at = 0.0
        self.reason = ""
        """The reason of the last failure."""

    @property
    def state(self) -> BreakerState:
        return self._state

    @property
    def is_closed(self) -> bool:
        return self._state is BreakerState.CLOSED

    def out_s(self) -> float:
        """Return for how many seconds the breaker has not been closed."""
        with self._lock:
            return 0.0 if self.is_closed else self._clock() - self._opened_at

    def fail(self, reason: str) -> bool:
        """Record that the server did not answer, and return whether this opened the breaker.

        A failed probe doubles the time to the next one. A failure reported while the breaker is open changes only the
        reason.
        """
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
        """Record that the server answered, and return whether this closed the breaker."""
        with self._lock:
            was, self._state = self._state, BreakerState.CLOSED
            return was is not BreakerState.CLOSED

    def begin_probe(self) -> bool:
        """Return whether a probe is due; if so, the breaker is half-open until the result of the probe is reported."""
        with self._lock:
            if self._state is not BreakerState.OPEN or self._clock() < self._failed_at + self._interval_s:
                return False
            self._state = BreakerState.HALF_OPEN
            return True

    def due_in_s(self) -> float:
        """Return the seconds until the next probe; 0 if it is due, or if none is needed."""
        with self._lock:
            if self._state is not BreakerState.OPEN:
                return 0.0
            return max(0.0, self._failed_at + self._interval_s - self._clock())
