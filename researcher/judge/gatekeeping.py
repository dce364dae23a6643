"""Gatekeeping: the secondary arms of a plan are tested only where all its primary arms are kept."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from experiments_db import Outcome, Verdict
from researcher.analysis import Comparison, JudgedContrast


def p_of_primary(primary: Sequence[str], adjusted: Mapping[str, float]) -> float:
    """Return the largest corrected p value of the primary arms; one that could not be tested counts as 1.

    It is 0 if there are none.
    """
    values = [adjusted.get(arm, 1.0) for arm in primary]
    return max((1.0 if math.isnan(p) else p for p in values), default=0.0)


def behind_gate(primary: Sequence[str], arms: Sequence[str], p_values: Sequence[float], gate: float) -> list[float]:
    """Return the p values, those of secondary arms at least `gate`, so that none passes before the primary ones."""
    return [p if arm in primary else max(p, gate) for arm, p in zip(arms, p_values, strict=True)]


def close_gate(primary: Sequence[str], compared: tuple[Comparison, ...]) -> tuple[Comparison, ...]:
    """Return the comparisons, those of secondary arms without a verdict unless every primary arm is kept."""
    kept = {item.arm for item in compared if item.verdict is Verdict.KEEP}
    if kept >= set(primary):
        return compared
    note = f"not decided, because {' and '.join(primary)} was not kept"
    return tuple(
        item
        if item.arm in primary
        else replace(item, verdict=Verdict.INCONCLUSIVE, note="; ".join(filter(None, [item.note, note])))
        for item in compared
    )


def close_gate_of_contrasts(
    primary: Sequence[str], first: Sequence[JudgedContrast], rest: Sequence[JudgedContrast]
) -> tuple[JudgedContrast, ...]:
    """Return the contrasts, those in `rest` undecided unless all those of the primary arms are supported."""
    if all(item.outcome is Outcome.SUPPORTED for item in first):
        return (*first, *rest)
    reason = f"not decided, because {' and '.join(primary)} is not shown to be better"
    return (*first, *(replace(item, outcome=Outcome.UNDECIDED, reason=reason) for item in rest))
