"""The number of runs per arm that a plan needs, its power, and the sentences about both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, variance

import numpy as np
from scipy import special

from researcher.charter import Charter, SampleSizeGoal
from researcher.judge.judgement import share_of_alpha
from researcher.judge.samples import OUTLIER_LEVEL, SHRINKAGE, TOLERANCE, ScoredRun, headroom_at, inflation
from researcher.plan import SampleSize

ASSUMED_SEED_SD = 0.04
"""The standard deviation between runs of one arm if nothing was measured, for scores in the middle of 0 to 1.

It is twice that of the bundled model."""
MIDDLE_HEADROOM = 0.25
ASSUMED_DF = 2.0
"""The weight of the assumption beside measured runs: that of three runs."""
QUANTILES = 20
MOST_SEEDS = 200
"""The number of seeds at which the search for the goal ends."""


@dataclass(frozen=True, slots=True)
class Spread:
    """An estimate of the variance of one run's score at `mean`.

    `seed_variance` is the variance between seeds, on `df` degrees of freedom. `noise_variance` is that of evaluation
    alone. `basis` names the source in words. If `mean` is None, nothing was measured, and the variances are those in
    the middle of the range.
    """

    seed_variance: float
    df: float
    noise_variance: float
    basis: str
    mean: float | None = None


def assume_spread(charter: Charter, basis: str = "an assumption: nothing has been measured") -> Spread:
    """Return the usual variance between seeds, and the evaluation noise of a score in the middle of the range."""
    return Spread((ASSUMED_SEED_SD * _scale(charter)) ** 2, ASSUMED_DF, _largest_noise(charter), basis)


def measure_spread(charter: Charter, arms: Sequence[Sequence[ScoredRun]], basis: str) -> Spread:
    """Return the variance of the runs of one or several arms, pooled within arms and combined with the assumption.

    Evaluation noise is taken to be that of episodes that are all or nothing, because other arms may score so.
    """
    assumed = assume_spread(charter)
    groups = [runs for runs in arms if len(runs) > 1]
    if not groups:
        return Spread(assumed.seed_variance, assumed.df, assumed.noise_variance, basis)
    mean = fmean(run.score for runs in groups for run in runs)
    # If the range is unknown, all means have the same headroom.
    share = 1.0 if charter.headroom_range is None else headroom_at(mean, charter.headroom_range) / MIDDLE_HEADROOM
    df = float(sum(len(runs) - 1 for runs in groups))
    squares = sum(
        (len(runs) - 1) * max(0.0, variance([run.score for run in runs]) - fmean(run.noise for run in runs))
        for runs in groups
    )
    noise = [run.noise for runs in groups for run in runs]
    return Spread(
        seed_variance=(assumed.df * assumed.seed_variance * share**SHRINKAGE + squares) / (assumed.df + df),
        df=assumed.df + df,
        noise_variance=fmean(noise) if charter.headroom_range is None else max(assumed.noise_variance * share, *noise),
        basis=basis,
        mean=mean,
    )


def choose_size(
    charter: Charter,
    goal: SampleSizeGoal,
    spread: Spread,
    arms: int,
    *,
    primary: int = 0,
    max_runs: int | None = None,
    run_seconds: float | None = None,
    parallel: int = 1,
) -> SampleSize:
    """Return the smallest number of seeds that reaches the goal, or the most that the goal and `max_runs` allow.

    `arms` counts the baseline too. If some arms are `primary`, only they are counted as comparisons, because the others
    are tested after them. `run_seconds` is the time of one run, and `parallel` runs go at a time.
    """
    comparisons = primary or max(arms - 1, 1)
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
        finds_worse=finds_worse(charter, spread, goal.target_effect),
    )


def power_of(charter: Charter, spread: Spread, comparisons: int, seeds: int, effect: float) -> float:
    """Return the probability that the first plan with a claim finds an arm that differs by `effect`.

    The arm is better, or worse if `finds_worse` is true. The power is 0 with fewer seeds than the rule asks.

    The power is that of the rule for two arms of equal size and variance, by the noncentral t distribution. The level
    is that of one comparison of a plan after Bonferroni's correction, and Holm's method is never stricter. The chance
    that a run is taken for an outlier is subtracted.

    The variance between seeds is known from a few runs only, so the power is averaged over its possible values. These
    follow the scaled inverse chi-squared distribution. A size that reaches the goal on this average is safer than one
    that trusts the estimate (assurance: O'Hagan, Stevens & Campbell 2005, Pharmaceutical Statistics 4:187-201).

    Scores vary less near an end of the range. The variance between seeds follows the headroom of a mean as in the rule,
    and evaluation noise follows it as a proportion's does. The rule then gives the arm nearer to an end the variance of
    the other arm.
    """
    rule = charter.rule
    if seeds < max(rule.min_seeds, 2):
        return 0.0
    level = rule.alpha * share_of_alpha(rule, 0) / (comparisons if rule.correction == "holm" else 1)
    chances = (np.arange(QUANTILES) + 0.5) / QUANTILES
    seed_variances = spread.seed_variance * spread.df / special.chdtri(spread.df, 1 - chances)
    measured, *places = _headrooms(charter, spread, effect)
    true = [
        seed_variances * (headroom / measured) ** SHRINKAGE + spread.noise_variance * headroom / measured
        for headroom in places
    ]
    judged = [each * inflation(headroom, max(places)) for each, headroom in zip(true, places, strict=True)]
    total, squares = np.maximum(sum(true), TOLERANCE), np.maximum(sum(each**2 for each in judged), TOLERANCE**2)
    df = np.maximum(sum(judged), TOLERANCE) ** 2 / squares * (seeds - 1)
    # The rule estimates its degrees of freedom, which come out about one lower.
    critical = special.stdtrit(np.maximum(df - 1, 1.0), 1 - level / 2) * np.sqrt(np.maximum(sum(judged) / total, 1.0))
    shifts = effect / np.sqrt(total / seeds)
    misses = special.nctdtr(df, shifts, critical)
    # scipy returns NaN for a probability that is too small for a float.
    found = float(np.mean(1 - np.where(np.isnan(misses) & np.isfinite(shifts), 0.0, misses)))
    return found * (1 - OUTLIER_LEVEL) ** 2


def finds_worse(charter: Charter, spread: Spread, effect: float) -> bool:
    """Return whether no arm can be better than this mean by the effect, so that a worse one is looked for."""
    if charter.judged_range is None or spread.mean is None:
        return False
    low, high = charter.judged_range
    return not low <= spread.mean + charter.sign * effect <= high


def _headrooms(charter: Charter, spread: Spread, effect: float) -> tuple[float, float, float]:
    """Return the headroom at the measured mean, at the baseline's mean (the same), and at the other arm's mean."""
    if charter.headroom_range is None:
        return 1.0, 1.0, 1.0
    low, high = charter.headroom_range
    mean = (low + high) / 2 if spread.mean is None else spread.mean
    step = charter.sign * effect * (-1 if finds_worse(charter, spread, effect) else 1)
    here = headroom_at(mean, charter.headroom_range)
    return here, here, headroom_at(mean + step, charter.headroom_range)


def _scale(charter: Charter) -> float:
    return 1.0 if charter.judged_range is None else charter.judged_range[1] - charter.judged_range[0]


def _largest_noise(charter: Charter) -> float:
    """Return the noise of a score in the middle of the range whose episodes are all or nothing."""
    return 0.25 * _scale(charter) ** 2 / charter.eval_episodes


def describe_target(effect: float, *, is_worse: bool) -> str:
    """Return the difference that a study looks for, in words."""
    if is_worse:
        return f"an arm that is worse by {effect:g} (none can be better by so much)"
    return f"an arm that is better by {effect:g}"


def describe(goal: SampleSizeGoal, size: SampleSize) -> str:
    """Return the number of runs with its power, in one or two sentences."""
    cost = "" if size.seconds is None else f", about {size.seconds / 60:.0f} min of training"
    target = describe_target(goal.target_effect, is_worse=size.finds_worse)
    sentence = (
        f"{size.seeds} runs per arm, {size.runs} in all{cost}: {target} is "
        f"found with probability {size.power:.2f} among {size.comparisons} comparisons (variance from {size.basis})."
    )
    if size.power < goal.target_power:
        sentence += f" {size.wanted} runs per arm would be needed for {goal.target_power:g}."
        if size.noise_variance > size.seed_variance:
            sentence += " Most of the variance is evaluation noise: more --eval-episodes lower it."
    return sentence


def refuse(goal: SampleSizeGoal, size: SampleSize) -> str:
    """Return why the study stops, and what would let it go on."""
    target = describe_target(goal.target_effect, is_worse=size.finds_worse)
    return (
        f"the study would find {target} with probability {size.power:.2f} only "
        f"({size.seeds} runs per arm, variance from {size.basis}); {size.wanted} would be needed for "
        f"{goal.target_power:g}: start it anew with --seeds {size.wanted} and a budget for that, with more "
        "--eval-episodes, or with --underpowered"
    )
