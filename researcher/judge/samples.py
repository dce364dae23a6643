"""Estimates from the runs of arms: means, standard errors, and p values and intervals of any contrast."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np
from numpy.typing import NDArray
from scipy import special

Range = tuple[float, float] | None

# Scores are ratios of small integers, so a smaller difference than this is only rounding.
TOLERANCE = 1e-12

SHRINKAGE = 1.6
"""The power with which the variance of a score follows its headroom, share * (1 - share) of the range.

It lies between that of a beta distribution of constant precision (1) and that of constant variance of the log odds (2).
docs/statistics.md has the error rates by which it was chosen."""
NEAREST = 0.01
"""A mean counts as no nearer to an end of the range than d / 4 * d / (d + NEAREST), if the other mean's distance is d.

With this number the bank of cases holds, and power grows with the effect."""
NEAREST_OF_OUTLIER = 0.01
"""The distance from an end of the range within which the other runs of an arm do not count as nearer to it."""
OUTLIER_LEVEL = 0.002
"""The probability that the test takes one run of a normal sample for an outlier."""
FEWEST_FOR_OUTLIER = 4


@dataclass(frozen=True, slots=True)
class ScoredRun:
    """One run as the judge sees it.

    `score` is the number that the run is judged by. For a run that failed by its own doing, it is what the charter
    prescribes. `failure` says how the run failed; it is also set if a run was ended early and scored. `noise` is the
    variance of `score` from its finite number of episodes, and `base_noise` is that of `base`. `retries` are the
    reasons, oldest first, of earlier attempts at this run that ended after their training had begun.

    `with_plain` is the run without its own agent: its score is that of the baseline's agent with the same weights. None
    unless the arm has another agent than the baseline.
    """

    run_id: str
    score: float
    noise: float
    base: float | None = None
    failure: str = ""
    base_noise: float | None = None
    retries: tuple[str, ...] = ()
    with_plain: ScoredRun | None = None


def evaluation_noise(mean: float, stderr: float, episodes: int, metric_range: Range) -> float:
    """Return the variance of a score that stems from its finite number of episodes alone.

    If all attempts score alike, the standard error is 0, which understates the noise. The variance is then that of a
    proportion with one success and one failure added (Agresti & Coull 1998, The American Statistician 52:119-126).
    Without a range of scores, it is the variance of one episode's step.
    """
    if stderr > 0:
        return stderr**2
    if metric_range is None:
        return 1.0 / episodes**2
    low, high = metric_range
    share = ((mean - low) / (high - low) * episodes + 1) / (episodes + 2)
    return max(0.0, share * (1 - share)) * (high - low) ** 2 / episodes


@dataclass(frozen=True, slots=True)
class ArmSample:
    """The runs of one arm: their scores, their mean, and the variance of one run's score; NaN if there are too few.

    `noise` is the part of the variance that comes from evaluation. `share` is the place of the mean in the range from 0
    to 1; None if the range is unknown.
    """

    n: int
    mean: float
    variance: float
    noise: float
    share: float | None = None
    scores: tuple[float, ...] = ()


def sample_of(runs: Sequence[ScoredRun], metric_range: Range = None) -> ArmSample:
    if not runs:
        return ArmSample(0, math.nan, math.nan, math.nan)
    noise = fmean(run.noise for run in runs)
    scores = tuple(run.score for run in runs)
    mean = fmean(scores)
    spread = max(variance(scores), noise) if len(runs) > 1 else math.nan
    return ArmSample(len(runs), mean, spread, noise, share_at(mean, metric_range), scores)


def variance(values: Sequence[float]) -> float:
    """Return the variance of a sample of two or more values.

    It computes in floats, because the standard library's exact variance is forty times slower.
    """
    mean = fmean(values)
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)


def share_at(mean: float, metric_range: Range, episodes: float = math.inf) -> float | None:
    """Return the place of a mean in the range, from 0 to 1; None if the range is unknown.

    One success and one failure are added to the episodes (default: so many that they change nothing).
    """
    if metric_range is None:
        return None
    low, high = metric_range
    share = min(max((mean - low) / (high - low), 0.0), 1.0)
    return (share + 1 / episodes) / (1 + 2 / episodes)


def headroom_at(mean: float, metric_range: Range, episodes: int) -> float:
    """Return the headroom of a mean: share * (1 - share), and 1 for every mean if the range is unknown.

    As in the noise of a score over so many episodes, one success and one failure are added. So a mean at an end of the
    range has some headroom too.
    """
    share = share_at(mean, metric_range, episodes)
    return 1.0 if share is None else share * (1 - share)


def inflation(share: float | None, widest: float | None, nearest: float | None = None) -> float:
    """Return the factor by which the variance grows from a mean at `share` of the range to one at `widest`.

    `widest` has more headroom. The factor stops growing where the mean at `share` is nearer to its end than `nearest`,
    by default much nearer than the other one. A larger effect would otherwise be found less often, because the factor
    outgrows the effect.
    """
    if share is None or widest is None:
        return 1.0
    other = widest if share < 0.5 else 1 - widest
    distance = max(min(share, 1 - share), other**2 / (4 * (other + NEAREST)) if nearest is None else nearest)
    return max(1.0, other * (1 - other) / (distance * (1 - distance))) ** SHRINKAGE if distance else 1.0


def inflations(
    shares: NDArray[np.float64], others: NDArray[np.float64], nearest: float | None = None
) -> NDArray[np.float64]:
    """Return `inflation` of many shares; it is 1 beside another mean with less headroom."""
    is_low = shares < 0.5
    distance, beside = np.where(is_low, shares, 1 - shares), np.where(is_low, others, 1 - others)
    distance = np.maximum(distance, beside**2 / (4 * (beside + NEAREST)) if nearest is None else nearest)
    with np.errstate(divide="ignore", invalid="ignore"):
        factors = np.maximum(beside * (1 - beside) / (distance * (1 - distance)), 1.0) ** SHRINKAGE
    return np.where(distance > 0, factors, 1.0)


def find_outlier(scores: Mapping[int, float], noise: float, sign: float, metric_range: Range = None) -> int | None:
    """Return the key of the highest score (`sign` 1) or the lowest (-1) if it lies apart from all others, else None.

    The test is that of Grubbs (1950, Annals of Mathematical Statistics 21:27-58). `noise` is the least variance of one
    score. Runs that are alike because they are near an end of the range get the variance that they would have where the
    furthest run is.
    """
    if len(scores) < FEWEST_FOR_OUTLIER:
        return None
    furthest = max(scores, key=lambda key: sign * scores[key])
    rest = [score for key, score in scores.items() if key != furthest]
    n = len(rest)
    mean = fmean(rest)
    factor = inflation(share_at(mean, metric_range), share_at(scores[furthest], metric_range), NEAREST_OF_OUTLIER)
    spread = max(variance(rest), noise, TOLERANCE) * factor
    apart = sign * (scores[furthest] - mean) / math.sqrt(spread * (1 + 1 / n))
    return furthest if len(scores) * float(special.stdtr(n - 1, -apart)) < OUTLIER_LEVEL else None


@dataclass(frozen=True, slots=True)
class Pairs:
    """The runs of two arms, each run of the first with each run of the second."""

    first: tuple[float, ...]
    second: tuple[float, ...]

    def p_above(self, bound: float = 0.0) -> float:
        """Return the one-sided p value of the hypothesis that the median difference of a pair is at most `bound`.

        The test is that of Brunner & Munzel (2000, Biometrical Journal 42:17-25), which assumes neither a shape nor
        equal variances.
        """
        above, below = sorted(score - bound for score in self.first), sorted(self.second)
        won = [_share_below(score, below) for score in above]
        lost = [1 - _share_below(score, above) for score in below]
        parts = [variance(each) / len(each) for each in (won, lost)]
        total, gain = sum(parts), fmean(won) - 0.5
        if total <= TOLERANCE:
            return 0.0 if gain > TOLERANCE else 1.0
        df = total**2 / sum(part**2 / (len(each) - 1) for part, each in zip(parts, (won, lost), strict=True))
        return float(special.stdtr(df, -gain / math.sqrt(total)))


def _share_below(score: float, ordered: Sequence[float]) -> float:
    """Return the share of the scores that are lower, an equal one counting half."""
    return (bisect_left(ordered, score - TOLERANCE) + bisect_right(ordered, score + TOLERANCE)) / 2 / len(ordered)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its standard error and its degrees of freedom; NaN if it could not be estimated.

    `pairs` are the runs of a difference of two arms. A claim about it must hold for the median pair of runs too.
    """

    value: float
    stderr: float
    df: float
    pairs: Pairs | None = None

    @property
    def of_means(self) -> Estimate:
        """The estimate without its pairs of runs."""
        return replace(self, pairs=None)

    def p_above(self, bound: float = 0.0) -> float:
        """Return the one-sided p value of the hypothesis that the true value is at most `bound`."""
        if self.stderr == 0.0:
            p = 0.0 if self.value > bound + TOLERANCE else 1.0
        else:
            p = float(special.stdtr(self.df, (bound - self.value) / self.stderr))
        return p if self.pairs is None or math.isnan(p) else max(p, self.pairs.p_above(bound))

    def p_below(self, bound: float = 0.0) -> float:
        """Return the one-sided p value of the hypothesis that the true value is at least `bound`."""
        return self.negated().p_above(-bound)

    def negated(self) -> Estimate:
        """Return the estimate of the opposite difference."""
        pairs = None if self.pairs is None else Pairs(self.pairs.second, self.pairs.first)
        return replace(self, value=-self.value, pairs=pairs)

    def lowered(self, loss: float) -> Estimate:
        """Return the estimate with every run of the first arm, and so its mean, lower by `loss`."""
        pairs = self.pairs and Pairs(tuple(score - loss for score in self.pairs.first), self.pairs.second)
        return replace(self, value=self.value - loss, pairs=pairs)

    def p_two_sided(self) -> float:
        """Return the p value of the hypothesis that the true value is 0."""
        smaller = min(self.p_above(), self.p_below())
        return math.nan if math.isnan(smaller) else min(1.0, 2 * smaller)

    def interval(self, alpha: float) -> tuple[float, float]:
        """Return Student's t interval at confidence 1 - alpha."""
        half = float(special.stdtrit(self.df, 1 - alpha / 2)) * self.stderr if self.stderr else self.stderr
        return self.value - half, self.value + half


NOT_ESTIMATED = Estimate(math.nan, math.nan, math.nan)


def contrast_of(weights: Mapping[str, float], samples: Mapping[str, ArmSample]) -> Estimate:
    """Return the weighted sum of the arms' means, with the variance that the arms have if they are equal.

    Arms are independent samples with variances of their own. A contrast is therefore tested as Welch did (1947,
    Biometrika 34:28-35), with the degrees of freedom of Satterthwaite (1946, Biometrics Bulletin 2:110-114). These are
    of the variances as measured. With three runs an arm near an end would else be found less often the nearer it is.

    A score near an end of its range has little room to vary. The few runs of an arm that happen to be good also happen
    to be alike, and Welch's test keeps such an arm too often. The variance is therefore computed as if the arms were
    equal, as in a score test. An arm nearer to an end gets the variance that it would have at the mean of the arm with
    the most headroom.

    A difference of two arms has their pairs of runs too. Its standard error is NaN if an arm has fewer than two runs.
    """
    value, total, measured, below = 0.0, 0.0, 0.0, 0.0
    shares = [share for arm in weights if (share := samples[arm].share) is not None]
    widest = max(shares, key=lambda share: share * (1 - share), default=None)
    for arm, weight in weights.items():
        sample = samples[arm]
        if sample.n == 0:
            return NOT_ESTIMATED
        part = weight**2 * sample.variance / sample.n
        value += weight * sample.mean
        measured += part
        total += part * inflation(sample.share, widest)
        below += part**2 / (sample.n - 1) if sample.n > 1 else math.nan
    pairs = _pairs_of(weights, samples)
    if total == 0.0:
        return Estimate(value, 0.0, math.inf, pairs)
    return Estimate(value, math.sqrt(total), measured**2 / below, pairs)


def _pairs_of(weights: Mapping[str, float], samples: Mapping[str, ArmSample]) -> Pairs | None:
    """Return the pairs of runs of a difference of two arms with two runs or more; None for another contrast."""
    if sorted(weights.values()) != [-1.0, 1.0]:
        return None
    second, first = sorted(weights, key=lambda arm: weights[arm])
    runs = Pairs(samples[first].scores, samples[second].scores)
    return runs if min(len(runs.first), len(runs.second)) > 1 else None


def noise_of(weights: Mapping[str, float], samples: Mapping[str, ArmSample]) -> Estimate:
    """Return the weighted sum of the arms' means, with evaluation noise as the only uncertainty.

    This is all that a single run per arm can show.
    """
    value = sum(weight * samples[arm].mean for arm, weight in weights.items())
    total = sum(weight**2 * samples[arm].noise / max(samples[arm].n, 1) for arm, weight in weights.items())
    return Estimate(value, math.sqrt(total), math.inf)


def within(bounds: tuple[float, float], interval: tuple[float, float]) -> tuple[float, float]:
    """Return the interval cut to `bounds`, which loses no coverage."""
    low, high = (min(max(end, bounds[0]), bounds[1]) if math.isfinite(end) else end for end in interval)
    return low, high
