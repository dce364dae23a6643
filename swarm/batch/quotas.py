"""How many tasks of each data source a batch takes: whole numbers whose long-run shares are those of the mixture.

Place in the flow: asked by the pool when a batch begins. Pure functions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping


def share_out(mixture: Mapping[str, float], batch_size: int, trained: Mapping[str, int]) -> dict[str, int]:
    """Tasks per data source of the next batch, summing to `batch_size`.

    Largest remainder, with what earlier batches (`trained`, in tasks) gave too much or too little carried over, at most
    one task per source: a source that was silent for long does not crowd the others out when it returns.
    """
    total = sum(trained.get(source, 0) for source in mixture)
    wanted = {
        source: max(0.0, share * batch_size + _bounded(share * total - trained.get(source, 0)))
        for source, share in mixture.items()
    }
    quotas = {source: math.floor(amount) for source, amount in wanted.items()}
    by_remainder = sorted(mixture, key=lambda source: (quotas[source] - wanted[source], source))
    missing = batch_size - sum(quotas.values())
    for turn in range(missing):
        quotas[by_remainder[turn % len(by_remainder)]] += 1
    for source in reversed(by_remainder):
        surplus = min(max(0, sum(quotas.values()) - batch_size), quotas[source])
        quotas[source] -= surplus
    return quotas


def _bounded(error: float) -> float:
    return max(-1.0, min(1.0, error))
