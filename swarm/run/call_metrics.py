"""Counts of model calls, and the rate of sampled tokens."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterable
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


class TokenRate:
    """Tokens per second over the last seconds; `total` counts them all."""

    def __init__(self) -> None:
        self.total = 0
        self._counts: deque[tuple[float, int]] = deque()

    def add(self, tokens: int) -> None:
        self.total += tokens
        self._counts.append((time.monotonic(), tokens))
        self._forget()

    def per_second(self) -> float:
        self._forget()
        return sum(tokens for _, tokens in self._counts) / RATE_WINDOW_S

    def _forget(self) -> None:
        horizon = time.monotonic() - RATE_WINDOW_S
        while self._counts and self._counts[0][0] < horizon:
            self._counts.popleft()
