"""The number of runs per arm that would decide the open arms.

Place in the flow: facts.py asks once per study, and no other place in a report states this number. It comes from the
judge's own power computation, with the variance that the study has measured. This module judges nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from researcher.charter import Charter, SampleSizeGoal
from researcher.judge import Runs
from researcher.judge.power import MOST_SEEDS, finds_worse, measure_spread, power_of


@dataclass(frozen=True, slots=True)
class SeedsNeeded:
    """The number of runs per arm with which an arm that is better by `effect` is kept with probability `power`.

    `seeds` is that number; None if even `most` is too few. `has` is the smallest number of runs that an arm has now. If
    `finds_worse` is true, no arm can be better by that much, and the numbers are for finding a worse one.
    """

    has: int
    seeds: int | None
    effect: float
    power: float
    most: int = MOST_SEEDS
    finds_worse: bool = False


def estimate_seeds(charter: Charter, scored: Mapping[str, Runs], open_arms: Sequence[str]) -> SeedsNeeded | None:
    """Return the number of runs that the open arms need.

    The effect is the one that the study was planned for. If there are enough runs for that, it is the smallest effect
    that counts. Returns None if no arm is open, or if no arm has two runs.
    """
    if not open_arms or all(len(runs) < 2 for runs in scored.values()):
        return None
    goal = charter.sample_size or SampleSizeGoal()
    spread = measure_spread(charter, [list(runs.values()) for runs in scored.values()], "the runs of this study")
    comparisons = max(len(scored) - 1, 1)
    has = min(len(scored.get(arm, {})) for arm in (*open_arms, charter.baseline))
    for effect in dict.fromkeys((goal.target_effect, charter.rule.min_effect)):
        if effect <= 0:
            continue
        sizes = range(1, MOST_SEEDS + 1)

        def power(seeds: int, effect: float = effect) -> float:
            return power_of(charter, spread, comparisons, seeds, effect)

        index = bisect_left(sizes, goal.target_power, key=power)
        seeds = sizes[index] if index < len(sizes) else None
        if seeds is None or seeds > has:
            is_worse = finds_worse(charter, spread, effect)
            return SeedsNeeded(has, seeds, effect, goal.target_power, finds_worse=is_worse)
    return None
