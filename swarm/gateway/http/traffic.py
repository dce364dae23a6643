"""Counts requests and how long they took, by route and answer.

Place in the flow: filled by middleware.py with every request, read by prometheus.py at a scrape. Used from one event
loop.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field

BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
"""Upper bounds. A begin is held for up to a minute, a model call for longer while weights change."""


@dataclass(slots=True)
class Latencies:
    """`counts` has one entry per bucket and one for what took longer than the last, none of them cumulative."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))
    total_s: float = 0.0

    def cumulative(self) -> Iterator[tuple[float, int]]:
        """Upper bound and number of requests within it, as Prometheus wants them; the last bound is infinite."""
        count = 0
        for bound, within in zip((*BUCKETS_S, float("inf")), self.counts, strict=True):
            count += within
            yield bound, count


@dataclass(slots=True)
class Traffic:
    """By method, route template and class of the answer: "2xx" to "5xx", or "none" if the caller left before it.

    Templates are bounded by the routes there are, whatever callers send.
    """

    latencies: dict[tuple[str, str, str], Latencies] = field(default_factory=dict[tuple[str, str, str], Latencies])

    def count(self, method: str, route: str, answer: str, seconds: float) -> None:
        key = (method, route, answer)
        latencies = self.latencies.get(key)
        if latencies is None:
            latencies = self.latencies[key] = Latencies()
        latencies.counts[bisect_left(BUCKETS_S, seconds)] += 1
        latencies.total_s += seconds
