"""Estimates from the runs of arms: means, standard errors, and p values and intervals of any contrast."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from scipy import special

Range = tuple[float, float] | None

# Scores are ratios of small integers, so a smaller difference than this is only rounding.
TOLERANCE = 1e-12

SHRINKAGE = 1.5
"""The power with which the variance of a score follows its headroom, share * (1 - share) of the range.

It lies between that of a beta distribution of constant precision (1) and that of constant variance of the log odds (2).
docs/statistics.md has the error rates by which it was chosen."""
OUTLIER_LEVEL = 0.002
"""The probability that the test takes one run of a normal sample for an outlier."""
FEWEST_FOR_OUTLIER = 4
LEAST_SHARE = 0.0025
"""The least distance of a mean from an end of the range, as a share of it: one episode of the usual 400."""


@dataclass(frozen=True, slots=True)
class ScoredRun:
    """One run as the judge sees it.

    `score` is the number that the run is judged by. For a run that failed by its own doing, it is what the charter
    prescribes. `failure` says how the run failed; it is also set if a run was ended early and scored. `noise` is the
    variance of `score` from its finite number of episodes, and `base_noise` is that of `base`. `retries` are the
    reasons, oldest first, of earlier attempts at this run that ended after their training had begun.
    """

    run_id: str
    score: float
    noise: float
    base: float | None = None
    failure: str = ""
    base_noise: float | None = None
    retries: tuple[str, ...] = ()


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
    """The runs of one arm: their number, their mean, and the variance of one run's score; NaN if there are too few.

    `noise` is the part of the variance that comes from evaluation. `headroom` is share * (1 - share), where share is
    the place of the mean in the range from 0 to 1. It is 1 for every mean if the range is unknown.
    """

    n: int
    mean: float
    variance: float
    noise: float
    headroom: float = 1.0


def sample_of(runs: Sequence[ScoredRun], metric_range: Range = None) -> ArmSample:
    if not runs:
        return ArmSample(0, math.nan, math.nan, math.nan)
    noise = fmean(run.noise for run in runs)
    scores = [run.score for run in runs]
    mean = fmean(scores)
    spread = max(variance(scores), noise) if len(runs) > 1 else math.nan
    return ArmSample(len(runs), mean, spread, noise, headroom_at(mean, metric_range))


def variance(values: Sequence[float]) -> float:
    """Return the variance of a sample of two or more values.

    It computes in floats, because the standard library's exact variance is forty times slower.
    """
    mean = fmean(values)
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)


def headroom_at(mean: float, metric_range: Range) -> float:
    """Return the headroom of a mean, at least that of a score at `LEAST_SHARE` from an end."""
    if metric_range is None:
        return 1.0
    low, high = metric_range
    share = min(max((mean - low) / (high - low), LEAST_SHARE), 1 - LEAST_SHARE)
    return share * (1 - share)


def inflation(headroom: float, widest: float) -> float:
    """Return the factor by which the variance grows from a mean with this headroom to one with the widest."""
    return max(1.0, widest / headroom) ** SHRINKAGE


def find_outlier(scores: Mapping[int, float], noise: float, sign: float) -> int | None:
    """Return the key of the highest score (`sign` 1) or the lowest (-1) if it lies apart from all others, else None.

    The test is that of Grubbs (1950, Annals of Mathematical Statistics 21:27-58). `noise` is the least variance of one
    score.
    """
    if len(scores) < FEWEST_FOR_OUTLIER:
        return None
    furthest = max(scores, key=lambda key: sign * scores[key])
    rest = [score for key, score in scores.items() if key != furthest]
    n = len(rest)
    apart = sign * (scores[furthest] - fmean(rest)) / math.sqrt(max(variance(rest), noise, TOLERANCE) * (1 + 1 / n))
    return furthest if len(scores) * float(special.stdtr(n - 1, -apart)) < OUTLIER_LEVEL else None


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its standard error and its degrees of freedom; NaN if it could not be estimated."""

    value: float
    stderr: float
    df: float

    def p_above(self, bound: float = 0.0) -> float:
        """Return the one-sided p value of the hypothesis that the true value is at most `bound`."""
        if self.stderr == 0.0:
            return 0.0 if self.value > bound + TOLERANCE else 1.0
        return float(special.stdtr(self.df, (bound - self.value) / self.stderr))

    def p_below(self, bound: float = 0.0) -> float:
        """Return the one-sided p value of the hypothesis that the true value is at least `bound`."""
        return Estimate(-self.value, self.stderr, self.df).p_above(-bound)

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
    Biometrika 34:28-35), with the degrees of freedom of Satterthwaite (1946, Biometrics Bulletin 2:110-114).

    A score near an end of its range has little room to vary. The few runs of an arm that happen to be good also happen
    to be alike, and Welch's test keeps such an arm too often. As in a score test, the variance is therefore computed as
    if the arms were equal: an arm nearer to an end gets the variance that it would have at the mean of the arm with the
    most headroom.

    Its standard error is NaN if an arm has fewer than two runs.
    """
    value, total, below = 0.0, 0.0, 0.0
    widest = max(samples[arm].headroom for arm in weights)
    for arm, weight in weights.items():
        sample = samples[arm]
        if sample.n == 0:
            return NOT_ESTIMATED
        part = weight**2 * sample.variance * inflation(sample.headroom, widest) / sample.n
        value += weight * sample.mean
        total += part
        below += part**2 / (sample.n - 1) if sample.n > 1 else math.nan
    if total == 0.0:
        return Estimate(value, 0.0, math.inf)
    return Estimate(value, math.sqrt(total), total**2 / below)


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
