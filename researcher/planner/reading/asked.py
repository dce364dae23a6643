"""What a topic asks of its factors, made into levels, a layout and a question.

Place in the flow: rules.py asks before designs.py lays out the arms. A question for an interaction or for the best
setting of several factors needs their combinations, which is why their levels are then cut to a number that a study can
run. This module knows nothing of servers or scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from researcher.planner.designs import LARGEST_FACTORIAL
from researcher.planner.factors import Factor, Level
from researcher.planner.reading.goals import Goal

_NEEDS_COMBINATIONS = frozenset({Goal.INTERACTION, Goal.BEST})


def needs_combinations(factors: Sequence[Factor], goals: Sequence[Goal]) -> bool:
    """Whether the question is about several factors together, so that one at a time cannot answer it."""
    return len(factors) > 1 and not _NEEDS_COMBINATIONS.isdisjoint(goals)


def fit_levels(factors: Sequence[Factor], goals: Sequence[Goal]) -> tuple[Factor, ...]:
    """The factors with few enough levels for all their combinations, where the question needs these.

    Levels that the topic gives are kept. For an interaction the two ends of the usual ones are enough; for the best
    setting there are up to three, as many as `LARGEST_FACTORIAL` allows.
    """
    fitted = tuple(factors)
    if not needs_combinations(factors, goals):
        return fitted
    for most in (2,) if Goal.INTERACTION in goals else (3, 2):
        fitted = tuple(
            factor if factor.explicit else replace(factor, levels=_spread(factor.levels, most)) for factor in factors
        )
        if prod(len(factor.levels) for factor in fitted) <= LARGEST_FACTORIAL:
            return fitted
    return fitted


def state_question(factors: Sequence[Factor], goals: Sequence[Goal], task: str) -> str:
    """The question of the charter; each thing that the topic asks is a part of it."""
    if not factors:
        return f"Which change to the default settings trains {task} best?"
    names = " and ".join(factor.name for factor in factors)
    several = len(factors) > 1
    if Goal.DIVERGES in goals and len(factors) == 1:
        return f"At which {names} does training on {task} diverge?"
    if Goal.NEEDED in goals and not several:
        return f"Is {names} needed on {task}?"
    parts = {
        Goal.MATTERS_MORE: f"which of {names} matters more" if several else "",
        Goal.INTERACTION: f"do {names} interact" if several else "",
        Goal.BEST: f"which setting of {names} is best" if several else f"which {names} is best",
    }
    asked = [part for goal, part in parts.items() if goal in goals and part]
    if not asked:
        return f"How {'do' if several else 'does'} {names} change what is learned on {task}?"
    text = ", and ".join(asked)
    return f"On {task}, {text}?"


def _spread(levels: tuple[Level, ...], most: int) -> tuple[Level, ...]:
    """Up to `most` of the levels, evenly from the first to the last."""
    if len(levels) <= most:
        return levels
    places = {round(index * (len(levels) - 1) / (most - 1)) for index in range(most)}
    return tuple(level for index, level in enumerate(levels) if index in places)
