"""The number of runs per arm that a plan needs, and its power."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, variance

import numpy as np
from numpy.typing import NDArray
from scipy import special

from researcher.charter import Charter, SampleSizeGoal
from researcher.judge.gatekeeping import share_of_alpha
from researcher.judge.judgement import CLEARLY_NEGATIVE
from researcher.judge.samples import (
    OUTLIER_LEVEL,
    SHRINKAGE,
    TOLERANCE,
    ScoredRun,
    headroom_at,
    inflation,
    inflations,
    share_at,
)
from researcher.plan import SampleSize

ASSUMED_SEED_SD = 0.04
"""The standard deviation between runs of one arm if nothing was measured, for scores in the middle of 0 to 1.

It is twice that of the bundled model."""
MIDDLE_HEADROOM = 0.25
ASSUMED_DF = 2.0
"""The weight of the assumption beside measured runs: that of three runs."""
QUANTILES = 20
DRAWS = 5000
"""The number of studies that are drawn for the power of a question for equality."""
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
    return Spread((ASSUMED_SEED_SD * scale_of(charter)) ** 2, ASSUMED_DF, largest_noise(charter), basis)


def measure_spread(charter: Charter, arms: Sequence[Sequence[ScoredRun]], basis: str) -> Spread:
    """Return the variance of the runs of one or several arms, pooled within arms and combined with the assumption.

    Evaluation noise is taken to be that of episodes that are all or nothing, because other arms may score so.

    A question for equality is sized for arms that score alike, so it takes the measured noise. It leaves the assumption
    out, because the assumption would ask for many more runs than arms that differ little need.
    """
    assumed = assume_spread(charter)
    groups = [runs for runs in arms if len(runs) > 1]
    if not groups:
        return Spread(assumed.seed_variance, assumed.df, assumed.noise_variance, basis)
    mean = fmean(run.score for runs in groups for run in runs)
    # If the range is unknown, all means have the same headroom.
    room = headroom_at(mean, charter.headroom_range, charter.eval_episodes)
    share = 1.0 if charter.headroom_range is None else room / MIDDLE_HEADROOM
    df = float(sum(len(runs) - 1 for runs in groups))
    squares = sum(
        (len(runs) - 1) * max(0.0, variance([run.score for run in runs]) - fmean(run.noise for run in runs))
        for runs in groups
    )
    noise = [run.noise for runs in groups for run in runs]
    if charter.margin is not None:
        return Spread(squares / df, df, fmean(noise), basis, mean)
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
    wanted = find_size(charter, goal, spread, comparisons) or MOST_SEEDS
    seeds = goal.seeds
    if seeds is None:
        # Fewer runs than the pilot has would waste some of it.
        seeds = min(max(wanted, goal.pilot_seeds), goal.max_seeds)
        if max_runs is not None:
            seeds = max(1, min(seeds, max_runs // arms))
    runs = arms * seeds
    return SampleSize(
        seeds=seeds,
        wanted=wanted,
        power=power_for(charter, goal, spread, comparisons, seeds),
        comparisons=comparisons,
        seed_variance=spread.seed_variance,
        noise_variance=spread.noise_variance,
        basis=spread.basis,
        runs=runs,
        seconds=None if run_seconds is None else run_seconds * math.ceil(runs / max(parallel, 1)),
        finds_worse=charter.margin is None and finds_worse(charter, spread, goal.target_effect),
        margin=charter.margin,
    )


def find_size(charter: Charter, goal: SampleSizeGoal, spread: Spread, comparisons: int) -> int | None:
    """Return the smallest number of runs per arm that reaches the goal; None if `MOST_SEEDS` do not."""
    sizes = range(max(charter.rule.min_seeds, 2), MOST_SEEDS + 1)
    index = bisect_left(sizes, goal.target_power, key=lambda n: power_for(charter, goal, spread, comparisons, n))
    return sizes[index] if index < len(sizes) else None


def power_for(charter: Charter, goal: SampleSizeGoal, spread: Spread, comparisons: int, seeds: int) -> float:
    """Return the power of the question: to call an equal arm equal, or to find an arm that differs by the target."""
    if charter.margin is not None:
        return power_of_equality(charter, spread, comparisons, seeds, charter.margin)
    return power_of(charter, spread, comparisons, seeds, goal.target_effect)


def power_of_equality(charter: Charter, spread: Spread, comparisons: int, seeds: int, margin: float) -> float:
    """Return the probability that the first plan calls an arm equal that has the mean of the baseline.

    The power is that of the rule: two one-sided tests at the level of one comparison, with the variance of the judge,
    which is never below evaluation noise. It is a share of drawn studies, the same ones at every call. As `power_of`,
    it is averaged over what the variance may be, and the chance of an outlier is subtracted.
    """
    rule = charter.rule
    if seeds < max(rule.min_seeds, 2):
        return 0.0
    random = np.random.default_rng(0)
    noise = max(spread.noise_variance, TOLERANCE)
    true = np.maximum((spread.seed_variance + noise) * spread.df / random.chisquare(spread.df, DRAWS), noise)
    differences = random.standard_normal(DRAWS) * np.sqrt(2 * true / seeds)
    middle = 0.5 if charter.headroom_range is None else sum(charter.headroom_range) / 2
    mean = middle if spread.mean is None else spread.mean
    low, high = (_shares_of(charter, mean + side * differences / 2) for side in (-1, 1))
    first, second = np.maximum(true * random.chisquare(seeds - 1, (2, DRAWS)) / (seeds - 1), noise) / seeds
    df = (first + second) ** 2 / (first**2 + second**2) * (seeds - 1)
    parts = [first * inflations(low, high), second * inflations(high, low)]
    total = parts[0] + parts[1]
    within = total - 2 * _chance_correlation(random, seeds) * np.sqrt(parts[0] * parts[1])
    total, df = np.maximum(total, within), np.where(within > total, seeds - 1, df)
    p = special.stdtr(df, (np.abs(differences) - margin) / np.sqrt(total))
    return float(np.mean(p < level_of(charter, comparisons))) * (1 - OUTLIER_LEVEL) ** 4


def _chance_correlation(random: np.random.Generator, seeds: int) -> NDArray[np.float64]:
    """Return correlations within seeds of arms that do not correlate: those that are clearly negative, and else 0."""
    pairs = max(seeds - 2, 1)
    t = random.standard_t(pairs, DRAWS)
    return np.where(t < special.stdtrit(pairs, CLEARLY_NEGATIVE), t / np.sqrt(pairs + t**2), 0.0)


def level_of(charter: Charter, comparisons: int) -> float:
    """Return the level of one comparison of the first plan with a claim, after Bonferroni's correction."""
    rule = charter.rule
    return rule.alpha * share_of_alpha(rule, 0) / (comparisons if rule.correction == "holm" else 1)


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
    level = level_of(charter, comparisons)
    chances = (np.arange(QUANTILES) + 0.5) / QUANTILES
    seed_variances = spread.seed_variance * spread.df / special.chdtri(spread.df, 1 - chances)
    places = _means(charter, spread, effect)
    rooms = [headroom_at(mean, charter.headroom_range, charter.eval_episodes) for mean in places]
    shares = [share_at(mean, charter.headroom_range, charter.eval_episodes) for mean in places]
    widest = shares[rooms.index(max(rooms))]
    # The variance was measured where the baseline is.
    ratios = [room / rooms[0] for room in rooms]
    true = [seed_variances * ratio**SHRINKAGE + spread.noise_variance * ratio for ratio in ratios]
    judged = [each * inflation(share, widest) for each, share in zip(true, shares, strict=True)]
    df, of_test = (_welch_df(parts, seeds) for parts in (judged, true))
    # The rule estimates its degrees of freedom, which come out about one lower where both arms vary alike.
    of_test += 1 - of_test / (seeds - 1)
    total = np.maximum(sum(true), TOLERANCE)
    critical = special.stdtrit(of_test, 1 - level / 2) * np.sqrt(np.maximum(sum(judged) / total, 1.0))
    shifts = effect / np.sqrt(total / seeds)
    misses = special.nctdtr(df, shifts, critical)
    # scipy returns NaN for a probability that is too small for a float.
    found = float(np.mean(1 - np.where(np.isnan(misses) & np.isfinite(shifts), 0.0, misses)))
    return found * (1 - OUTLIER_LEVEL) ** 2


def _welch_df(parts: Sequence[NDArray[np.float64]], seeds: int) -> NDArray[np.float64]:
    """Return the degrees of freedom of the sum of the variances of arms with so many runs each."""
    squares = np.maximum(sum(part**2 for part in parts), TOLERANCE**2)
    return np.maximum(sum(parts), TOLERANCE) ** 2 / squares * (seeds - 1)


def finds_worse(charter: Charter, spread: Spread, effect: float) -> bool:
    """Return whether no arm can be better than this mean by the effect, so that a worse one is looked for."""
    if charter.judged_range is None or spread.mean is None:
        return False
    low, high = charter.judged_range
    return not low <= spread.mean + charter.sign * effect <= high


def _means(charter: Charter, spread: Spread, effect: float) -> tuple[float, float]:
    """Return the means of the baseline and of the other arm; in the middle of the range if nothing was measured."""
    mean = spread.mean
    if mean is None:
        mean = 0.0 if charter.headroom_range is None else sum(charter.headroom_range) / 2
    return mean, mean + charter.sign * effect * (-1 if finds_worse(charter, spread, effect) else 1)


def _shares_of(charter: Charter, means: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the places of many means in the range; the middle if the range has no ends."""
    if charter.headroom_range is None:
        return np.full_like(means, 0.5)
    low, high = charter.headroom_range
    return np.clip((means - low) / (high - low), 0.0, 1.0)


def scale_of(charter: Charter) -> float:
    """Return the width of the range of the judged number; 1 if it is unknown."""
    return 1.0 if charter.judged_range is None else charter.judged_range[1] - charter.judged_range[0]


def largest_noise(charter: Charter) -> float:
    """Return the noise of a score in the middle of the range whose episodes are all or nothing."""
    return 0.25 * scale_of(charter) ** 2 / charter.eval_episodes
