"""How fast tokens are sampled.

Place in the flow: completion.py adds, the status shows. Knows nothing of calls.
"""

from __future__ import annotations

import time
from collections import deque

RATE_WINDOW_S = 10.0


class TokenRate:
    """Tokens per second over the last seconds; `total` counts them all."""

    def __init__(self, window_s: float = RATE_WINDOW_S) -> None:
        self.total = 0
        self._window_s = window_s
        self._counts: deque[tuple[float, int]] = deque()

    def add(self, tokens: int) -> None:
        self.total += tokens
        self._counts.append((time.monotonic(), tokens))
        self._forget()

    def per_second(self) -> float:
        self._forget()
        return sum(tokens for _, tokens in self._counts) / self._window_s

    def _forget(self) -> None:
        horizon = time.monotonic() - self._window_s
        while self._counts and self._counts[0][0] < horizon:
            self._counts.popleft()
