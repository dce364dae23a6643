"""What is counted about the model calls of a job: what was out of the ordinary, and how fast tokens are sampled.

Place in the flow: completion.py, held_sampling.py and the model routes count, the status shows. This module knows
nothing of calls themselves.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

MAX_NAMES = 100
"""Clients choose the names of the fields they send; beyond these they are counted as `other`."""

OTHER = "other"


class Oddity(StrEnum):
    """An attempt joined a running call, or was told a finished one again; a call was given up by its caller; a turn
    was withheld from training because its tokens do not spell what was shown."""

    JOINED = "joined"
    REPLAYED = "replayed"
    ORPHANED = "orphaned"
    DECODE_MISMATCH = "decode_mismatch"


@dataclass(slots=True)
class CallCounts:
    """`ignored_fields` counts the fields without effect by name."""

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
