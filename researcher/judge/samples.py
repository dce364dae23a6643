"""What is estimated from the runs of arms: means, their standard errors, and p values and intervals of any contrast.

Place in the flow: bottom of the judge; the other modules say which contrast is asked and what follows from it. This
module knows nothing of rules, plans or verdicts.

Arms are independent samples with variances of their own, so a contrast is tested as Welch did (1947, Biometrika
34:28-35), with the degrees of freedom of Satterthwaite (1946, Biometrics Bulletin 2:110-114). The variance of a score
is never taken to be smaller than what its finite number of episodes gives by itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, variance

from scipy import special

from researcher.types import ScoredRun

Range = tuple[float, float] | None

# Scores are ratios of small integers: what differs by less than this differs only by rounding.
TOLERANCE = 1e-12


def evaluation_noise(mean: float, stderr: float, episodes: int, metric_range: Range) -> float:
    """The variance of a score that stems from its finite number of episodes alone.

    All attempts alike give a standard error of 0, which is not the truth: then the variance is that of a proportion
    with one success and one failure added (Agresti & Coull 1998, The American Statistician 52:119-126), or without a
    range of scores that of one episode's step.
    """
    if stderr > 0:
        return stderr**2
    if metric_range is None:
        return 1.0 / episodes**2
    low, high = metric_range
    share = ((mean - low) / (high - low) * episodes + 1) / (episodes + 2)
    return max(0.0, share * (1 - share)) * (high - low) ** 2 / episodes


@dataclass(frozen=True, slots=True)
class Sample:
    """The runs of one arm: how many, their mean, and the variance of one run's score; NaN where there are too few.

    `noise` is the part of that variance that evaluation gives.
    """

    n: int
    mean: float
    variance: float
    noise: float


def sample_of(runs: Sequence[ScoredRun]) -> Sample:
    if not runs:
        return Sample(0, math.nan, math.nan, math.nan)
    noise = fmean(run.noise for run in runs)
    scores = [run.score for run in runs]
    spread = max(variance(scores), noise) if len(runs) > 1 else math.nan
    return Sample(len(runs), fmean(scores), spread, noise)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its standard error and its degrees of freedom; NaN is what could not be estimated."""

    value: float
    stderr: float
    df: float

    def p_above(self, bound: float = 0.0) -> float:
        """One-sided p value of the hypothesis that the true value is at most `bound`."""
        if self.stderr == 0.0:
            return 0.0 if self.value > bound + TOLERANCE else 1.0
        return float(special.stdtr(self.df, (bound - self.value) / self.stderr))

    def p_below(self, bound: float = 0.0) -> float:
        """One-sided p value of the hypothesis that the true value is at least `bound`."""
        return Estimate(-self.value, self.stderr, self.df).p_above(-bound)

    def p_two_sided(self) -> float:
        """P value of the hypothesis that the true value is 0."""
        smaller = min(self.p_above(), self.p_below())
        return math.nan if math.isnan(smaller) else min(1.0, 2 * smaller)

    def interval(self, alpha: float) -> tuple[float, float]:
        """Student's t interval at confidence 1 - alpha."""
        half = float(special.stdtrit(self.df, 1 - alpha / 2)) * self.stderr if self.stderr else self.stderr
        return self.value - half, self.value + half


NOT_ESTIMATED = Estimate(math.nan, math.nan, math.nan)


def contrast_of(weights: Mapping[str, float], samples: Mapping[str, Sample]) -> Estimate:
    """The weighted sum of the arms' means. Its standard error is NaN if an arm has fewer than two runs."""
    value, total, below = 0.0, 0.0, 0.0
    for arm, weight in weights.items():
        sample = samples[arm]
        if sample.n == 0:
            return NOT_ESTIMATED
        part = weight**2 * sample.variance / sample.n
        value += weight * sample.mean
        total += part
        below += part**2 / (sample.n - 1) if sample.n > 1 else math.nan
    if total == 0.0:
        return Estimate(value, 0.0, math.inf)
    return Estimate(value, math.sqrt(total), total**2 / below)


def noise_of(weights: Mapping[str, float], samples: Mapping[str, Sample]) -> Estimate:
    """The same with evaluation noise as the only uncertainty: what a single run per arm can say."""
    value = sum(weight * samples[arm].mean for arm, weight in weights.items())
    total = sum(weight**2 * samples[arm].noise / max(samples[arm].n, 1) for arm, weight in weights.items())
    return Estimate(value, math.sqrt(total), math.inf)


def within(bounds: tuple[float, float], interval: tuple[float, float]) -> tuple[float, float]:
    """The interval cut to what the value can be, which loses no coverage."""
    low, high = (min(max(end, bounds[0]), bounds[1]) if math.isfinite(end) else end for end in interval)
    return low, high
