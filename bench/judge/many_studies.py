"""The rule of decision for thousands of studies at once, in arrays.

The first axis is the study, the second the arm, the last the seed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy import special

from bench.judge.shapes import BASE, Drawn, Floats
from researcher.charter import DecisionRule
from researcher.judge.samples import (
    FEWEST_FOR_OUTLIER,
    NEAREST_OF_OUTLIER,
    OUTLIER_LEVEL,
    TOLERANCE,
    inflations,
)
from researcher.judge.worst_case import RETRIED_LEVEL

Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class EvaluatedRuns:
    """The runs as the evaluator gives them, on scores from 0 to 1; what is missing has a score that nobody sees."""

    scores: Floats
    noise: Floats
    failed: Bools
    retried: Bools
    missing: Bools

    @property
    def shown(self) -> Bools:
        return ~self.missing


@dataclass(frozen=True, slots=True)
class Moments:
    n: Floats
    mean: Floats
    variance: Floats


def measure(drawn: Drawn, random: Generator, episodes: int) -> EvaluatedRuns:
    """Measure each score over a number of episodes that are won or lost.

    A run that failed counts with the base score.
    """
    return evaluate(drawn, random.binomial(episodes, chances_of(drawn)), episodes)


def chances_of(drawn: Drawn) -> Floats:
    """Return the chance of each run to win an episode."""
    return np.clip(np.where(drawn.failed, BASE, drawn.scores), 0.0, 1.0)


def evaluate(drawn: Drawn, won: NDArray[np.int_], episodes: int) -> EvaluatedRuns:
    """Score the runs by the episodes that each of them won."""
    scores = won / episodes
    added = (scores * episodes + 1) / (episodes + 2)
    inside = scores * (1 - scores)
    noise = np.where(inside > 0, inside / (episodes - 1), added * (1 - added) / episodes)
    return EvaluatedRuns(scores, noise, drawn.failed, drawn.trainings > 1, drawn.missing)


def decide(rule: DecisionRule, arms: EvaluatedRuns, baseline: EvaluatedRuns) -> tuple[Bools, Bools]:
    """Decide which arms are kept and which are called worse.

    The baseline has one arm and no missing seed.
    """
    p, gain = _test(arms, baseline)
    is_kept, is_worse = _by_rule(rule, p, gain)
    at_worst = replace(
        arms,
        scores=np.where(arms.missing, 0.0, arms.scores),
        noise=np.where(arms.missing, 0.0, arms.noise),
        missing=np.zeros_like(arms.missing),
    )
    kept_at_worst, _ = _by_rule(rule, *_test(at_worst, baseline, _loss_by_retries(arms, baseline)))
    is_known = ~(arms.missing | (arms.retried & arms.shown)).any(axis=-1)
    runs, of_baseline = arms.shown.sum(axis=-1), baseline.shown.sum(axis=-1)
    failures, against = (each.failed & each.shown for each in (arms, baseline))
    fails_more = failures.sum(axis=-1) * of_baseline > against.sum(axis=-1) * runs
    is_enough = np.minimum(runs, of_baseline) >= rule.min_seeds
    speaks_against = _has_outlier(arms, baseline, -1.0) | _has_outlier(baseline, arms, 1.0)
    speaks_for = _has_outlier(arms, baseline, 1.0) | _has_outlier(baseline, arms, -1.0)
    is_kept &= is_enough & (is_known | kept_at_worst) & ~fails_more & ~speaks_against
    return is_kept, is_worse & is_enough & ~speaks_for


def _by_rule(rule: DecisionRule, p: Floats, gain: Floats) -> tuple[Bools, Bools]:
    order = np.argsort(p, axis=-1)
    steps = np.take_along_axis(p, order, -1) * (p.shape[-1] - np.arange(p.shape[-1]))
    adjusted = np.empty_like(p)
    np.put_along_axis(adjusted, order, np.maximum.accumulate(np.minimum(steps, 1.0), axis=-1), -1)
    is_clear = adjusted < rule.alpha
    return is_clear & (gain >= rule.min_effect - TOLERANCE), is_clear & (gain < 0)


def _loss_by_retries(arms: EvaluatedRuns, baseline: EvaluatedRuns) -> Floats:
    runs, retried = arms.shown.sum(axis=-1), (arms.retried & arms.shown).sum(axis=-1)
    bound = special.betaincinv(retried + 1, np.maximum(runs - retried, 1), 1 - RETRIED_LEVEL)
    share = np.where(retried < runs, bound, 1.0)
    lowest = np.minimum(np.where(arms.shown, arms.scores, np.inf).min(axis=-1), baseline.scores.min(axis=-1))
    mean = np.where(arms.shown, arms.scores, 0.0).sum(axis=-1) / runs
    return np.where(retried > 0, share * np.maximum(mean - np.minimum(lowest, BASE), 0.0), 0.0)


def _test(arms: EvaluatedRuns, baseline: EvaluatedRuns, loss: Floats | float = 0.0) -> tuple[Floats, Floats]:
    """Return P values, 1 where there are too few runs, and gains."""
    arm, base = _moments(arms), _moments(baseline)
    parts = [each.variance / each.n for each in (arm, base)]
    df = (parts[0] + parts[1]) ** 2 / (parts[0] ** 2 / (arm.n - 1) + parts[1] ** 2 / (base.n - 1))
    total = parts[0] * inflations(arm.mean, base.mean) + parts[1] * inflations(base.mean, arm.mean)
    gain = arm.mean - base.mean - loss
    total, df = _within_seeds(arms, baseline, total, df)
    p = special.stdtr(df, -np.abs(gain) / np.sqrt(total))
    p = np.minimum(2 * np.maximum(p, _p_of_pairs(arms, baseline, loss, gain > 0)), 1.0)
    return np.where(np.isnan(p), 1.0, p), gain


def _p_of_pairs(arms: EvaluatedRuns, baseline: EvaluatedRuns, loss: Floats | float, is_gain: Bools) -> Floats:
    """Return Brunner and Munzel's one-sided p value in the direction of the gain."""
    mask, n, m = arms.shown, arms.shown.sum(axis=-1), baseline.scores.shape[-1]
    lowered = arms.scores - np.asarray(loss)[..., None]
    differences = lowered[..., :, None] - baseline.scores[..., None, :]
    won = (np.sign(np.where(np.abs(differences) <= TOLERANCE, 0.0, differences)) + 1) / 2
    of_arm = np.where(mask, won.mean(axis=-1), 0.0)
    of_baseline = np.where(mask[..., None], won, 0.0).sum(axis=-2) / n[..., None]
    share = of_arm.sum(axis=-1) / n
    parts = [
        (_centered(of_arm, mask) ** 2).sum(axis=-1) / (n - 1) / n,
        of_baseline.var(axis=-1, ddof=1) / m,
    ]
    total = parts[0] + parts[1]
    df = total**2 / (parts[0] ** 2 / (n - 1) + parts[1] ** 2 / (m - 1))
    gain = np.where(is_gain, share - 0.5, 0.5 - share)
    p = special.stdtr(df, -gain / np.sqrt(total))
    return np.where(total <= TOLERANCE, np.where(gain > TOLERANCE, 0.0, 1.0), p)


def _within_seeds(arms: EvaluatedRuns, baseline: EvaluatedRuns, total: Floats, df: Floats) -> tuple[Floats, Floats]:
    """Return the variance and its degrees of freedom, from the differences within seeds.

    They are used only where arm and baseline clearly correlate negatively, and then only if they are wider than
    `total`.
    """
    mask = arms.shown
    n = mask.sum(axis=-1)
    left, right = (_centered(scores, mask) for scores in (arms.scores, np.broadcast_to(baseline.scores, mask.shape)))
    scale = np.sqrt((left**2).sum(axis=-1) * (right**2).sum(axis=-1))
    correlation = np.where(scale > TOLERANCE, (left * right).sum(axis=-1) / scale, np.nan)
    t = correlation * np.sqrt((n - 2) / np.maximum(1 - correlation**2, TOLERANCE))
    is_against = (n >= 3) & (special.stdtr(np.maximum(n - 2, 1), t) < 0.05)
    paired = ((left - right) ** 2).sum(axis=-1) / (n - 1) / n
    is_wider = is_against & (paired > total)
    return np.where(is_wider, paired, total), np.where(is_wider, n - 1, df)


def _centered(values: Floats, mask: Bools) -> Floats:
    mean = np.where(mask, values, 0.0).sum(axis=-1, keepdims=True) / mask.sum(axis=-1, keepdims=True)
    return np.where(mask, values - mean, 0.0)


def _moments(runs: EvaluatedRuns) -> Moments:
    mask = runs.shown
    n = mask.sum(axis=-1).astype(np.float64)
    mean = np.where(mask, runs.scores, 0.0).sum(axis=-1) / n
    noise = np.where(mask, runs.noise, 0.0).sum(axis=-1) / n
    variance = (_centered(runs.scores, mask) ** 2).sum(axis=-1) / np.where(n > 1, n - 1, np.nan)
    return Moments(n, mean, np.maximum(variance, noise))


def _has_outlier(runs: EvaluatedRuns, others: EvaluatedRuns, sign: float) -> Bools:
    """Return whether the highest run (`sign` 1) or the lowest (-1) lies apart from the others of its arm.

    A run that lies beyond all runs of the other arm, on the side of its own arm, does not count.
    """
    mask = runs.shown & ~runs.failed
    n = mask.sum(axis=-1)
    furthest = np.argmax(np.where(mask, sign * runs.scores, -np.inf), axis=-1)[..., None]
    rest = mask.copy()
    np.put_along_axis(rest, furthest, False, -1)
    noise = np.where(mask, runs.noise, 0.0).sum(axis=-1) / n
    variance = np.maximum((_centered(runs.scores, rest) ** 2).sum(axis=-1) / (n - 2), noise)
    mean = np.where(rest, runs.scores, 0.0).sum(axis=-1) / (n - 1)
    value = np.take_along_axis(runs.scores, furthest, -1)[..., 0]
    spread = np.maximum(variance, TOLERANCE) * inflations(mean, value, NEAREST_OF_OUTLIER)
    apart = sign * (value - mean) / np.sqrt(spread * (1 + 1 / (n - 1)))
    crosses = sign * value >= np.where(others.shown, sign * others.scores, np.inf).min(axis=-1)
    return crosses & (n >= FEWEST_FOR_OUTLIER) & (n * special.stdtr(np.maximum(n - 2, 1), -apart) < OUTLIER_LEVEL)
