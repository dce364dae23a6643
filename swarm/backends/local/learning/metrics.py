"""The measurements of the updates of a step, collected under one flat set of names.

Place in the flow: at the end of a step the learner reads the numbers that its updates added here. This module knows
nothing of models, batches or optimizers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping


class Meter:
    """Sums, weighted means, maxima and counts under one flat set of names."""

    def __init__(self) -> None:
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._totals: defaultdict[str, float] = defaultdict(float)
        self._weights: defaultdict[str, float] = defaultdict(float)
        self._maxima: dict[str, float] = {}

    def add(self, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._sums[name] += value

    def count(self, name: str) -> None:
        self._sums[name] += 1.0

    def average(self, values: Mapping[str, float], weight: float = 1.0) -> None:
        for name, value in values.items():
            self._totals[name] += weight * value
            self._weights[name] += weight

    def maximum(self, name: str, value: float) -> None:
        self._maxima[name] = max(value, self._maxima.get(name, value))

    def include(self, update: Meter) -> None:
        """Add the numbers of one update: its sums are averaged over updates, its means keep their weights."""
        self.average(update._sums)
        for name, total in update._totals.items():
            self._totals[name] += total
            self._weights[name] += update._weights[name]
        for name, value in update._maxima.items():
            self.maximum(name, value)

    def read(self) -> dict[str, float]:
        means = {name: total / self._weights[name] for name, total in self._totals.items()}
        return {**self._sums, **means, **self._maxima}
