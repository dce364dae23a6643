"""What another study could try, from what this one left open.

Place in the flow: render.py prints these sentences after the limitations. They follow from the facts by rules. The
planner's own lessons stand apart, because nobody has checked them. Nothing is computed here.
"""

from __future__ import annotations

from collections.abc import Iterator

from experiments_db import ArmFailure, Outcome, SearchArm
from researcher.report.formats import join_names
from researcher.report.numbers.facts import StudyFacts

MOST_LEADERS = 3


def next_steps(facts: StudyFacts) -> list[str]:
    """Return one sentence for each thing that was left open; empty if there is none."""
    return [*_of_undecided(facts), *_of_ablations(facts), *_of_exploration(facts)]


def _of_undecided(facts: StudyFacts) -> Iterator[str]:
    opened = [arm.name for arm in facts.arms if arm.is_open]
    if opened:
        yield f"Compare again on fresh seeds: {join_names(opened)}."


def _of_ablations(facts: StudyFacts) -> Iterator[str]:
    if facts.confirmation is None or facts.winner is None or not facts.winner.is_kept:
        return
    for item in facts.confirmation.ablations:
        if item.outcome is not Outcome.SUPPORTED:
            yield f"Go on from {item.name}: the gain of {facts.confirmation.winner} is not shown to need that part."


def _of_exploration(facts: StudyFacts) -> Iterator[str]:
    if facts.exploration is None:
        return
    sign, named = facts.charter.of_scores.sign, {arm.name for arm in facts.arms}
    explored = facts.exploration.explored
    baseline = next((arm for arm in explored if arm.experiment.is_baseline), None)
    ahead = [
        arm.name
        for arm in facts.exploration.leaders(sign)
        if arm.name not in named and baseline is not None and _is_ahead(arm, baseline, sign)
    ]
    if ahead:
        yield f"Confirm what led the baseline in exploration and was not compared: {join_names(ahead[:MOST_LEADERS])}."
    pretending = [arm.name for arm in explored if arm.failure is ArmFailure.NOT_AS_CLAIMED]
    if pretending:
        yield f"Mend what is not what it claims to be: {join_names(pretending)}."


def _is_ahead(arm: SearchArm, baseline: SearchArm, sign: float) -> bool:
    """Return whether an arm has the better exploring score at a rung that both have reached."""
    scores = {item.share: item.score for item in baseline.scored}
    last = arm.last
    other = None if last is None else scores.get(last.share)
    return last is not None and last.score is not None and other is not None and sign * (last.score - other) > 0
