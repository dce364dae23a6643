"""The order in which the arms of a plan are tested: what each has of alpha, and who gets it once an arm is decided."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from experiments_db import Outcome, Verdict
from researcher.analysis import Comparison, JudgedContrast
from researcher.charter import DecisionRule

Shares = dict[str, float]


def share_of_alpha(rule: DecisionRule, claim: int) -> float:
    """Return the share of alpha, from 0 to 1, of the plan before which so many plans have made a claim.

    By the union bound, all plans of a study together keep a useless arm with probability alpha at most, whatever number
    of plans there is and whatever stops them.
    """
    if not rule.shares:
        return 1.0
    return rule.shares[claim] if claim < len(rule.shares) else 0.0


def adjust_holm(p_values: Sequence[float], size: int | None = None) -> list[float]:
    """Return Holm's adjusted p values in the order given, in a family of `size` (default: the number of values).

    NaN stays NaN but counts in the family. So do the comparisons that `size` has beyond the values given. Neither is
    ever rejected.
    """
    total = len(p_values) if size is None else max(size, len(p_values))
    order = sorted((p, index) for index, p in enumerate(p_values) if not math.isnan(p))
    adjusted = [math.nan] * len(p_values)
    running = 0.0
    for rank, (p, index) in enumerate(order):
        running = max(running, min(1.0, (total - rank) * p))
        adjusted[index] = running
    return adjusted


def correct_both(
    rule: DecisionRule,
    share: float,
    arms: Sequence[str],
    p_values: Sequence[tuple[float, float]],
    primary: Sequence[str],
    size: int,
) -> tuple[list[float], list[float]]:
    """Return the p values of both tests, adjusted so that each compares with alpha itself.

    `share` is the plan's share of alpha, and `size` the number of its comparisons.

    Behind a first primary arm that is not kept nothing is decided, so its place in the order of the second tests is by
    the p value of its first test.
    """
    first, second = ([each[index] for each in p_values] for index in (0, 1))
    adjusted, others = (_correct(rule, share, arms, each, primary, size) for each in (first, second))
    if primary and primary[0] in arms:
        leader = arms.index(primary[0])
        in_order = [*second[:leader], first[leader], *second[leader + 1 :]]
        behind = _correct(rule, share, arms, in_order, primary, size)
        others = [*behind[:leader], others[leader], *behind[leader + 1 :]]
    return adjusted, others


def _correct(
    rule: DecisionRule, share: float, arms: Sequence[str], p_values: Sequence[float], primary: Sequence[str], size: int
) -> list[float]:
    """Return the p values adjusted for the family and for the plan's share, so that each compares with alpha itself.

    The method is Holm's step-down (1979, Scandinavian Journal of Statistics 6:65-70). In a plan with primary arms it is
    `adjust_in_order`.
    """
    adjusted = list(p_values)
    if rule.correction == "holm" and primary:
        by_arm = dict(zip(arms, p_values, strict=True))
        in_order = adjust_in_order(primary, by_arm, size - len(primary))
        adjusted = [in_order[arm] for arm in arms]
    elif rule.correction == "holm":
        adjusted = adjust_holm(p_values, size)
    elif primary:
        gate = dict(zip(arms, p_values, strict=True)).get(primary[0], math.nan)
        gate = 1.0 if math.isnan(gate) else gate
        adjusted = [p if arm in primary else max(p, gate) for arm, p in zip(arms, p_values, strict=True)]
    return [math.nan if math.isnan(p) else min(1.0, p / share) if share else 1.0 for p in adjusted]


def adjust_in_order(primary: Sequence[str], p_values: Mapping[str, float], secondary: int) -> dict[str, float]:
    """Return the p values of a plan with primary arms, adjusted so that each compares with alpha itself.

    The primary arms share alpha equally. An arm that is rejected passes its share on: the first one to the secondary
    arms, of which there are `secondary`, any other one to the other primary arms. The secondary arms have nothing
    before that, and pass on to each other. Whatever is true, the probability of a wrong rejection is at most alpha
    (graphical procedure: Bretz, Maurer, Brannath & Posch 2009, Statistics in Medicine 28:586-604). Without secondary
    arms it is Holm's method. With a single primary arm that arm has all of alpha, and so have the others behind it.

    NaN is never rejected, and neither is an arm without a p value; both count.
    """
    others = [arm for arm in p_values if arm not in primary]
    others += [f"no arm {number}" for number in range(len(others), secondary)]
    weights = dict.fromkeys(primary, 1 / len(primary)) | dict.fromkeys(others, 0.0)
    passes = {arm: _share_among([each for each in primary if each != arm]) for arm in primary}
    if others:
        passes[primary[0]] = _share_among(others)
    passes |= {arm: _share_among([each for each in others if each != arm]) for arm in others}
    left = {arm for arm in weights if not math.isnan(p_values.get(arm, math.nan))}
    adjusted, reached = dict.fromkeys(weights, math.nan), 0.0
    while left:
        ratios = {arm: p_values[arm] / weights[arm] if weights[arm] else math.inf for arm in weights if arm in left}
        first = min(ratios, key=lambda arm: ratios[arm])
        reached = max(reached, min(1.0, ratios[first]))
        adjusted[first] = reached
        left.discard(first)
        _reject(first, weights, passes)
    return {arm: adjusted[arm] for arm in p_values}


def _share_among(arms: Sequence[str]) -> Shares:
    return dict.fromkeys(arms, 1 / len(arms)) if arms else {}


def _reject(arm: str, weights: Shares, passes: dict[str, Shares]) -> None:
    """Take an arm out: its share and its place in the order go to the arms that it passes on to."""
    weight, own = weights.pop(arm), passes.pop(arm)
    for other in weights:
        weights[other] += weight * own.get(other, 0.0)
        theirs = passes[other]
        back = theirs.pop(arm, 0.0)
        circle = 1 - back * own.get(other, 0.0)
        passes[other] = {
            each: (theirs.get(each, 0.0) + back * own.get(each, 0.0)) / circle
            for each in weights
            if each != other and circle > 0
        }


def close_gate(primary: Sequence[str], compared: tuple[Comparison, ...]) -> tuple[Comparison, ...]:
    """Return the comparisons, those of secondary arms without a verdict unless the first primary arm is kept."""
    kept = {item.arm for item in compared if item.verdict is Verdict.KEEP}
    if not primary or primary[0] in kept:
        return compared
    note = f"not decided, because {primary[0]} was not kept"
    return tuple(
        item
        if item.arm in primary
        else replace(item, verdict=Verdict.INCONCLUSIVE, note="; ".join(filter(None, [item.note, note])))
        for item in compared
    )


def close_gate_of_contrasts(
    primary: Sequence[str], first: Sequence[JudgedContrast], rest: Sequence[JudgedContrast]
) -> tuple[JudgedContrast, ...]:
    """Return the contrasts, those in `rest` undecided unless those of the first primary arm are supported."""
    if all(item.outcome is Outcome.SUPPORTED for item in first if primary[0] in item.contrast.arms):
        return (*first, *rest)
    reason = f"not decided, because {primary[0]} is not shown to be better"
    return (*first, *(replace(item, outcome=Outcome.UNDECIDED, reason=reason) for item in rest))
