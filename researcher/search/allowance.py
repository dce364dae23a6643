"""What exploration and confirmation may still use of a study's budget."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from experiments_db import BudgetKind
from researcher.charter import Charter, SearchRules
from researcher.record.runs import Trial, cost_of

ARMS_OF_CLAIM = 2
"""The fewest arms of a confirmation: the baseline and the arm that was found."""


def count_explored(trials: Iterable[Trial]) -> float:
    """Return the cost of all exploring runs in full runs; a trial costs as much as its last attempt."""
    return sum(cost_of(trial.runs[-1], trial.experiment) for trial in trials if trial.rung and trial.runs)


def runs_left(charter: Charter, rules: SearchRules, *, explored: float, used: float, claims: int) -> float:
    """Return the full runs that exploration may still use.

    After a first confirmation the reserve is added. The runs of a smallest confirmation stay untouched.
    """
    split = rules.split
    allowed = rules.runs if not claims else rules.runs * (1 + split.reserve / split.exploration)
    left = allowed - explored
    if charter.budget.max_runs is not None:
        left = min(left, charter.budget.max_runs - used - ARMS_OF_CLAIM * charter.rule.min_seeds)
    return max(0.0, left)


def runs_for_claim(charter: Charter, rules: SearchRules, *, used: float, claims: int) -> int | None:
    """Return the most runs of the next confirmation; None without a limit. The first one leaves the reserve."""
    most = charter.budget.max_runs
    if most is None:
        return None
    kept = rules.split.reserve * most if not claims else 0.0
    return max(0, math.floor(most - kept - used + 1e-9))


def find_time_used_up(
    charter: Charter, rules: SearchRules, used: Mapping[BudgetKind, float], *, claims: int
) -> str | None:
    """Return why exploration has no time left, if its part of the hours or GPU-hours is used; else None.

    After a confirmation, half of the reserve is for exploring and half for confirming what it finds.
    """
    split = rules.split
    part = split.exploration if not claims else split.exploration + split.confirmation + split.reserve / 2
    limits = (
        (BudgetKind.WALL_CLOCK_S, charter.budget.max_wall_s, "wall clock"),
        (BudgetKind.GPU_HOURS, charter.budget.max_gpu_hours, "GPU-hours"),
    )
    for kind, limit, name in limits:
        if limit is not None and used[kind] >= part * limit:
            return f"the part of the {name} that belongs to exploration is used"
    return None
