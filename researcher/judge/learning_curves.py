"""How fast a run learned: its held-out scores by training step, the area under them, and the steps to a level.

Place in the flow: analyze judges runs by the area where the charter says so, the report shows all of it. The scores are
those that the evaluator stored; this module knows nothing of arms, seeds or verdicts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from experiments_db import EvaluationSummary
from researcher.evaluator import AT_STEP, BASE, FINAL
from researcher.judge import evaluation_noise


@dataclass(frozen=True, slots=True)
class ScoredStep:
    """What a run scored after so many steps; `noise` is the variance of the mean from its finite number of episodes."""

    step: int
    mean: float
    noise: float


@dataclass(frozen=True, slots=True)
class Area:
    """The mean score over all steps of a run, in units of the metric, and its variance from evaluation alone."""

    mean: float
    noise: float


def curve_of(
    evaluations: Iterable[EvaluationSummary], split: str, metric_range: tuple[float, float] | None
) -> tuple[ScoredStep, ...]:
    """The scores of one run on a split, by step: the base at 0, those in mid-training, and the end."""
    points: dict[int, ScoredStep] = {}
    for item in evaluations:
        step = _step_of(item)
        if item.split == split and step is not None:
            noise = evaluation_noise(item.mean, item.stderr, item.episodes, metric_range)
            points[step] = ScoredStep(step, item.mean, noise)
    return tuple(points[step] for step in sorted(points))


def area_under(curve: Sequence[ScoredStep]) -> Area | None:
    """The area by the trapezoidal rule over the steps from the first score to the last; None for fewer than two."""
    if len(curve) < 2:
        return None
    weights = [0.0] * len(curve)
    for index, (left, right) in enumerate(pairwise(curve)):
        half = (right.step - left.step) / 2 / (curve[-1].step - curve[0].step)
        weights[index] += half
        weights[index + 1] += half
    mean = math.fsum(weight * point.mean for weight, point in zip(weights, curve, strict=True))
    noise = math.fsum(weight**2 * point.noise for weight, point in zip(weights, curve, strict=True))
    return Area(mean, noise)


def steps_to(curve: Sequence[ScoredStep], level: float) -> float | None:
    """After how many steps the score first reaches a level, by straight lines between scores; None if it never does."""
    if curve and curve[0].mean >= level:
        return float(curve[0].step)
    for left, right in pairwise(curve):
        if right.mean >= level:
            share = (level - left.mean) / (right.mean - left.mean)
            return left.step + share * (right.step - left.step)
    return None


def _step_of(evaluation: EvaluationSummary) -> int | None:
    if evaluation.phase == BASE:
        return 0
    if evaluation.phase == FINAL:
        return evaluation.weight_version
    if evaluation.phase.startswith(AT_STEP):
        return int(evaluation.phase.removeprefix(AT_STEP))
    return None
