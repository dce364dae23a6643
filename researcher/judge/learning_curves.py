"""The learning speed of a run: held-out scores by training step, the area under them, and the steps to a level."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import pi
from statistics import median

from experiments_db import EvaluationSummary
from researcher.judge import evaluation_noise
from researcher.phases import AT_STEP, BASE, FINAL


@dataclass(frozen=True, slots=True)
class ScoredStep:
    """The score of a run after `step` steps.

    `noise` is the variance of the mean from its finite number of episodes.
    """

    step: int
    mean: float
    noise: float


@dataclass(frozen=True, slots=True)
class JudgedNumber:
    """The number by which a run is judged, and its variance from evaluation alone."""

    value: float
    noise: float


def curve_of(
    evaluations: Iterable[EvaluationSummary], split: str, metric_range: tuple[float, float] | None
) -> tuple[ScoredStep, ...]:
    """Return the scores of one run on a split, by step: the base at 0, those in mid-training, and the end."""
    points: dict[int, ScoredStep] = {}
    for item in evaluations:
        step = _step_of(item)
        if item.split == split and step is not None:
            noise = evaluation_noise(item.mean, item.stderr, item.episodes, metric_range)
            points[step] = ScoredStep(step, item.mean, noise)
    return tuple(points[step] for step in sorted(points))


def area_under(curve: Sequence[ScoredStep]) -> JudgedNumber | None:
    """Return the mean score over all steps of a run, in units of the metric: the area by the trapezoidal rule.

    The steps are those from the first score to the last. Fewer than two scores give None.
    """
    if len(curve) < 2:
        return None
    weights = [0.0] * len(curve)
    for index, (left, right) in enumerate(pairwise(curve)):
        half = (right.step - left.step) / 2 / (curve[-1].step - curve[0].step)
        weights[index] += half
        weights[index + 1] += half
    mean = math.fsum(weight * point.mean for weight, point in zip(weights, curve, strict=True))
    noise = math.fsum(weight**2 * point.noise for weight, point in zip(weights, curve, strict=True))
    return JudgedNumber(mean, noise)


def steps_to(curve: Sequence[ScoredStep], level: float) -> JudgedNumber | None:
    """Return after how many steps the score first reaches a level; None if it never does.

    Between two scores the curve is a straight line. The variance follows from that of the score by the line's slope.
    It is at most that of a step which may be anywhere between the two scores.
    """
    if curve and curve[0].mean >= level:
        return JudgedNumber(float(curve[0].step), 0.0)
    for left, right in pairwise(curve):
        if right.mean >= level:
            gap, rise = right.step - left.step, right.mean - left.mean
            noise = max(left.noise, right.noise) * (gap / rise) ** 2
            return JudgedNumber(left.step + gap * (level - left.mean) / rise, min(noise, gap**2 / 12))
    return None


def lowest_of(curve: Sequence[ScoredStep], sign: float) -> JudgedNumber | None:
    """Return the worst score after step 0; None if there is none.

    A larger score is better if `sign` is 1.
    """
    trained = [point for point in curve if point.step > 0]
    worst = min(trained, key=lambda point: sign * point.mean, default=None)
    return None if worst is None else JudgedNumber(worst.mean, worst.noise)


def spread_of(finals: Sequence[JudgedNumber]) -> list[JudgedNumber]:
    """Return how far each score of an arm lies from their median, without a sign.

    The mean of these distances is a measure of spread whose differences can be tested like those of means (Brown &
    Forsythe 1974, JASA 69:364-367). The distance of a normal variable from its mean has 1 - 2/pi of its variance.
    """
    centre = median(each.value for each in finals)
    return [JudgedNumber(abs(each.value - centre), (1 - 2 / pi) * each.noise) for each in finals]


def _step_of(evaluation: EvaluationSummary) -> int | None:
    if evaluation.phase == BASE:
        return 0
    if evaluation.phase == FINAL:
        return evaluation.weight_version
    if evaluation.phase.startswith(AT_STEP):
        return int(evaluation.phase.removeprefix(AT_STEP))
    return None
