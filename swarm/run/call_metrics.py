"""Counts of model calls, and the rate of sampled tokens."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum

MAX_NAMES = 100
"""The most names that are counted. Clients choose the names of the fields they send; further names count as `other`."""

OTHER = "other"


class Oddity(StrEnum):
    """Unusual events of model calls, each with a count of its own.

    An attempt joined a running call, or got the reply of a finished one again. A caller gave its call up. A turn was
    excluded from training because its tokens do not spell the reply that was shown.
    """

    JOINED = "joined"
    REPLAYED = "replayed"
    ORPHANED = "orphaned"
    DECODE_MISMATCH = "decode_mismatch"


@dataclass(slots=True)
class CallCounts:
    """Counts of model calls. `ignored_fields` counts the fields without effect by name."""

    oddities: Counter[str] = field(default_factory=Counter[str])
    ignored_fields: Counter[str] = field(default_factory=Counter[str])

    def count(self, oddity: Oddity) -> None:
        self.oddities[oddity.value] += 1

    def ignore(self, names: Iterable[str]) -> None:
        for name in names:
            known = name in self.ignored_fields or len(self.ignored_fields) < MAX_NAMES
            self.ignored_fields[name if known else OTHER] += 1


RATE_WINDOW_S = 10.0
LEAST_S = 1.0


class TokenRate:
    """Tokens per second over the last seconds in which completions were sampled; `total` counts all tokens."""

    def __init__(self, served_since: Callable[[], float]) -> None:
        """Create the rate of a sampler.

        `served_since` returns the time of the last change of the engine's state, on the monotonic clock. Nothing is
        sampled while weights change, and that time does not count.
        """
        self.total = 0
        self._served_since = served_since
        self._counts: deque[tuple[float, int]] = deque()
        self._under_way = 0
        self._busy_since = 0.0

    @contextmanager
    def sampling(self) -> Generator[None]:
        """Count a completion as under way inside the block. Time without any does not count."""
        if not self._under_way:
            self._busy_since = time.monotonic()
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1

    def add(self, tokens: int) -> None:
        self.total += tokens
        self._counts.append((time.monotonic(), tokens))
        self._forget()

    def per_second(self) -> float:
        """Return the rate over the last seconds of sampling, a second at least; 0 while weights change."""
        now = time.monotonic()
        begin = max(self._busy_since, self._served_since(), now - RATE_WINDOW_S)
        self._forget()
        sampled = sum(tokens for at, tokens in self._counts if at >= begin)
        return sampled / max(LEAST_S, now - begin)

    def _forget(self) -> None:
        horizon = time.monotonic() - RATE_WINDOW_S
        while self._counts and self._counts[0][0] < horizon:
            self._counts.popleft()
