"""How many runs per arm a plan needs, and the power that a number of runs has, before the first run.

Place in the flow: the `design` node hands in what is known of the variance and gets a `SampleSize`. This module knows
nothing of how the variance was measured, of planners or of databases.

The power is that of the rule for two arms of equal size and variance, by the noncentral t distribution, at the level of
one comparison out of those of a plan (Bonferroni, which Holm's method is never below). Where the better arm is nearer
to an end of the range than the baseline, the rule takes its variance for larger, and needs a larger t. What it takes
for a run apart from the others is taken off. The variance between seeds is known from a few runs only, so the power is
averaged over what it may be: seed variance times its degrees of freedom over a chi-squared variable (the scaled inverse
chi-squared distribution). A size that reaches the goal on that average is safer than one that takes the estimate for
the truth (assurance: O'Hagan, Stevens & Campbell 2005, Pharmaceutical Statistics 4:187-201).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, variance

import numpy as np
from scipy import special

from researcher.judge.judgement import share_of_alpha
from researcher.judge.samples import OUTLIER_LEVEL, TOLERANCE, inflation, room_at
from researcher.types import Charter, SampleSize, SampleSizeGoal, ScoredRun

ASSUMED_SEED_SD = 0.04
"""Standard deviation between runs of one arm where nothing was measured, on scores from 0 to 1: twice what the bundled
model shows."""
ASSUMED_DF = 2.0
"""What the assumption weighs beside measured runs: as much as three of them."""
QUANTILES = 20
MOST_SEEDS = 200
"""Beyond this the search for a number that reaches the goal ends."""


@dataclass(frozen=True, slots=True)
class Spread:
    """What is known of the variance of one run's score: between seeds, on `df` degrees of freedom, and of evaluation
    alone. `basis` says in words where it comes from. `mean` is that of the scores; None if nothing was measured."""

    seed_variance: float
    df: float
    noise_variance: float
    basis: str
    mean: float | None = None


def assume_spread(charter: Charter, basis: str = "an assumption: nothing has been measured") -> Spread:
    """Nothing measured: the usual variance between seeds, and the evaluation noise of a score in mid-range."""
    return Spread((ASSUMED_SEED_SD * _scale(charter)) ** 2, ASSUMED_DF, _largest_noise(charter), basis)


def measure_spread(charter: Charter, arms: Sequence[Sequence[ScoredRun]], basis: str) -> Spread:
    """From the runs of one arm or several, pooled within arms, together with the assumption.

    Other arms may score where evaluation noise is largest, whatever the measured ones do, so that noise is taken.
    """
    assumed = assume_spread(charter)
    groups = [runs for runs in arms if len(runs) > 1]
    df = float(sum(len(runs) - 1 for runs in groups))
    squares = sum(
        (len(runs) - 1) * max(0.0, variance([run.score for run in runs]) - fmean(run.noise for run in runs))
        for runs in groups
    )
    noise = [run.noise for runs in groups for run in runs]
    return Spread(
        seed_variance=(assumed.df * assumed.seed_variance + squares) / (assumed.df + df),
        df=assumed.df + df,
        noise_variance=max([assumed.noise_variance, *noise]) if charter.metric_range is not None else fmean(noise),
        basis=basis,
        mean=fmean(run.score for runs in groups for run in runs) if groups else None,
    )


def choose_size(
    charter: Charter,
    goal: SampleSizeGoal,
    spread: Spread,
    arms: int,
    *,
    max_runs: int | None = None,
    run_seconds: float | None = None,
    parallel: int = 1,
) -> SampleSize:
    """The smallest number of seeds that reaches the goal, or the most that the goal and `max_runs` allow.

    `arms` includes the baseline; `run_seconds` is what one run took, of which `parallel` go at a time.
    """
    comparisons = max(arms - 1, 1)
    least = max(charter.rule.min_seeds, 2)
    sizes = range(least, MOST_SEEDS + 1)
    wanted = next(
        (n for n in sizes if power_of(charter, spread, comparisons, n, goal.target_effect) >= goal.target_power),
        MOST_SEEDS,
    )
    seeds = goal.seeds
    if seeds is None:
        seeds = min(wanted, goal.max_seeds)
        if max_runs is not None:
            seeds = max(1, min(seeds, max_runs // arms))
    runs = arms * seeds
    return SampleSize(
        seeds=seeds,
        wanted=wanted,
        power=power_of(charter, spread, comparisons, seeds, goal.target_effect),
        comparisons=comparisons,
        seed_variance=spread.seed_variance,
        noise_variance=spread.noise_variance,
        basis=spread.basis,
        runs=runs,
        seconds=None if run_seconds is None else run_seconds * math.ceil(runs / max(parallel, 1)),
    )


def power_of(charter: Charter, spread: Spread, comparisons: int, seeds: int, effect: float) -> float:
    """Probability that an arm which is better by `effect` is kept in the first plan; 0 with fewer seeds than the rule
    asks."""
    rule = charter.rule
    if seeds < max(rule.min_seeds, 2):
        return 0.0
    level = rule.alpha * share_of_alpha(rule, 0) / (comparisons if rule.correction == "holm" else 1)
    factors = _inflations(charter, spread, effect)
    df = sum(factors) ** 2 / sum(factor**2 for factor in factors) * (seeds - 1)
    # The rule estimates its degrees of freedom, and comes out about one lower.
    critical = float(special.stdtrit(max(df - 1, 1.0), 1 - level / 2)) * math.sqrt(fmean(factors))
    chances = (np.arange(QUANTILES) + 0.5) / QUANTILES
    variances = spread.seed_variance * spread.df / special.chdtri(spread.df, 1 - chances) + spread.noise_variance
    shifts = effect / np.sqrt(2 * np.maximum(variances, TOLERANCE) / seeds)
    misses = special.nctdtr(df, shifts, critical)
    # What is too small for a float comes as NaN.
    found = float(np.mean(1 - np.where(np.isnan(misses) & np.isfinite(shifts), 0.0, misses)))
    return found * (1 - OUTLIER_LEVEL) ** 2


def _inflations(charter: Charter, spread: Spread, effect: float) -> list[float]:
    """By how much the rule takes the variances of the baseline and of the better arm for larger than they are."""
    if charter.metric_range is None:
        return [1.0, 1.0]
    low, high = charter.metric_range
    mean = (low + high) / 2 if spread.mean is None else spread.mean
    better = mean + (-effect if charter.direction == "minimize" else effect)
    rooms = [room_at(each, charter.metric_range) for each in (mean, better)]
    return [inflation(room, max(rooms)) for room in rooms]


def _scale(charter: Charter) -> float:
    return 1.0 if charter.metric_range is None else charter.metric_range[1] - charter.metric_range[0]


def _largest_noise(charter: Charter) -> float:
    """That of a score in the middle of the range whose episodes are all or nothing."""
    return 0.25 * _scale(charter) ** 2 / charter.eval_episodes
