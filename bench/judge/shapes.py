"""The distributions of an arm's scores: the shapes that training gives, and what a program makes of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import exp, sqrt
from typing import cast

import numpy as np
from numpy.random import Generator, default_rng
from numpy.typing import NDArray
from scipy import optimize, stats

Floats = NDArray[np.float64]
Size = tuple[int, ...]

BASE = 0.2
"""The score before training, which a run that failed counts with."""
TRAININGS = 4
"""So often a run is trained before the system gives it up."""
PAIRS = (200_000,)
"""The pairs of runs by which two shapes are made level."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """A draw of runs.

    It has their true scores, which of them failed through their own fault, how often each was trained, and which of
    them never gave a score.
    """

    scores: Floats
    failed: NDArray[np.bool_]
    trainings: NDArray[np.int_]
    missing: NDArray[np.bool_]


Shape = Callable[[Generator, Size], Drawn]


def normal(mean: float, deviation: float) -> Shape:
    return lambda random, size: _shown(mean + deviation * random.standard_normal(size))


def heavy_tailed(mean: float, deviation: float) -> Shape:
    """Return Student's t with three degrees of freedom, whose variance is 3."""
    return lambda random, size: _shown(mean + deviation / sqrt(3) * random.standard_t(3, size))


def beta(mean: float, deviation: float) -> Shape:
    """Return a shape that is bounded by 0 and 1, and skewed near either."""
    precision = mean * (1 - mean) / deviation**2 - 1
    return lambda random, size: _shown(random.beta(mean * precision, (1 - mean) * precision, size))


def clipped(mean: float, deviation: float) -> Shape:
    """Return a normal shape with all values beyond 0 and 1 moved to that bound.

    `mean` is the mean after the cut.
    """

    def excess(center: float) -> float:
        low, high = -center / deviation, (1 - center) / deviation
        inside = center * (stats.norm.cdf(high) - stats.norm.cdf(low))
        beside = deviation * (stats.norm.pdf(low) - stats.norm.pdf(high)) + stats.norm.sf(high)
        return float(inside + beside) - mean

    center = cast(float, optimize.brentq(excess, -1.0, 2.0))
    return lambda random, size: _shown(np.clip(center + deviation * random.standard_normal(size), 0.0, 1.0))


TAILS: Mapping[str, Callable[[Generator, Size], Floats]] = {
    "gamma 4": lambda random, size: (random.standard_gamma(4, size) - 4) / 2,
    "gamma 2": lambda random, size: (random.standard_gamma(2, size) - 2) / sqrt(2),
    "exponential": lambda random, size: random.standard_exponential(size) - 1,
    "lognormal 0.75": lambda random, size: _lognormal(random, size, 0.75),
    "lognormal 1": lambda random, size: _lognormal(random, size, 1.0),
}
"""Distributions with a right tail, a mean of 0 and a variance of 1; their skewness is 1, 1.4, 2, 3.3 and 6.2."""


def _lognormal(random: Generator, size: Size, sigma: float) -> Floats:
    mean = exp(sigma**2 / 2)
    return (np.exp(sigma * random.standard_normal(size)) - mean) / (mean * sqrt(exp(sigma**2) - 1))


def tailed(tail: str, mean: float, deviation: float) -> Shape:
    """Return a skewed shape with one of `TAILS`; a negative deviation turns the tail to the left."""
    return lambda random, size: _shown(mean + deviation * TAILS[tail](random, size))


def level_with(shape: Shape, other: Shape) -> Shape:
    """Return the shape moved so far that its runs beat those of `other` as often as they lose."""
    random = default_rng(0)
    apart = float(np.median(shape(random, PAIRS).scores - other(random, PAIRS).scores))

    def draw(random: Generator, size: Size) -> Drawn:
        drawn = shape(random, size)
        return replace(drawn, scores=drawn.scores - apart)

    return draw


def two_groups(high: float, low: float, share_low: float, deviation: float) -> Shape:
    """Return a shape in which a share of the runs ends at another score.

    This models a collapse that nobody sees, or a second optimum.
    """

    def draw(random: Generator, size: Size) -> Drawn:
        places = np.where(random.random(size) < share_low, low, high)
        return _shown(places + deviation * random.standard_normal(size))

    return draw


def failing(shape: Shape, share: float) -> Shape:
    """Return `shape` with a share of runs that fail and are known to have failed."""

    def draw(random: Generator, size: Size) -> Drawn:
        return replace(shape(random, size), failed=random.random(size) < share)

    return draw


def hiding(shape: Shape, below: float) -> Shape:
    """Return the shape of a program that hides runs with a score below `below` and is not trained again."""

    def draw(random: Generator, size: Size) -> Drawn:
        drawn = shape(random, size)
        return replace(drawn, missing=drawn.scores < below)

    return draw


def choosy(shape: Shape, below: float, trainings: int = TRAININGS) -> Shape:
    """Return the shape of a program that breaks its training where the score is below `below`.

    The system takes the break for its own fault and trains the run again. A run whose scores are all too low is missing
    in the end.
    """

    def draw(random: Generator, size: Size) -> Drawn:
        drawn = shape(random, size)
        scores, counts = drawn.scores, drawn.trainings
        for _ in range(trainings - 1):
            again = scores < below
            scores, counts = np.where(again, shape(random, size).scores, scores), counts + again
        return replace(drawn, scores=scores, trainings=counts, missing=scores < below)

    return draw


def _shown(scores: Floats) -> Drawn:
    """Return runs that all ended well and were trained once."""
    never = np.zeros(scores.shape, dtype=np.bool_)
    return Drawn(scores, never, np.ones(scores.shape, dtype=np.int_), never)
