"""The number of tasks of each data source in a batch: whole numbers whose long-run shares follow the mixture.

Place in the flow: asked by the pool when a batch begins. Pure functions. A carry is the number of tasks by which each
data source is behind its share (above 0) or ahead of it.
"""

from __future__ import annotations

from collections.abc import Mapping

MAX_CARRY = 1.0
"""The largest carry, so that a source that was silent for long does not crowd the others out when it returns. Full
batches never reach it."""


def share_out(mixture: Mapping[str, float], batch_size: int, carry: Mapping[str, float]) -> dict[str, int]:
    """Return the tasks per data source of the next batch, summing to `batch_size`.

    One task after another goes to the source that must have one soonest among those that are due one (R. Tijdeman, "The
    chairman assignment problem", 1980). So no source is ever a whole task away from its share, however many batches
    follow one another. Rounding each batch by largest remainder cannot promise that with many small shares.
    """
    shares = _normalized(mixture)
    margin = 1 / (2 * len(shares) - 2) if len(shares) > 1 else 0.0
    behind = {source: carry.get(source, 0.0) for source in shares}
    quotas = dict.fromkeys(shares, 0)
    for _ in range(batch_size):
        for source, share in shares.items():
            behind[source] += share
        due = [source for source in shares if behind[source] >= margin - 1e-9]
        if due:
            chosen = min(due, key=lambda source: (_slack(behind[source], margin, shares[source]), source))
        else:
            chosen = max(shares, key=lambda source: (behind[source], source))
        behind[chosen] -= 1
        quotas[chosen] += 1
    return quotas


def carry_over(
    mixture: Mapping[str, float], carry: Mapping[str, float], trained: Mapping[str, int]
) -> dict[str, float]:
    """Return the carry after so many more tasks of each data source were `trained`.

    Sources outside the mixture are left out. A carry is at most one task either way.
    """
    shares = _normalized(mixture)
    total = sum(trained.get(source, 0) for source in shares)
    exact = {
        source: carry.get(source, 0.0) + share * total - trained.get(source, 0) for source, share in shares.items()
    }
    return {source: max(-MAX_CARRY, min(MAX_CARRY, behind)) for source, behind in exact.items()}


def _slack(behind: float, margin: float, share: float) -> float:
    """Return in how many tasks from now the source would be a task behind, less the margin.

    The result is rounded so that equal sources stay equal.
    """
    return round((1 - margin - behind) / share, 6)


def _normalized(mixture: Mapping[str, float]) -> dict[str, float]:
    """Return shares that sum to 1 exactly, since shares such as 0.333 do so only nearly."""
    total = sum(mixture.values())
    return {source: mixture[source] / total for source in sorted(mixture)}
