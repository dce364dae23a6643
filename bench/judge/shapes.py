"""What an arm's scores are distributed like: the shapes that trainings give, and what a program makes of them.

Place in the flow: the bank of cases and the simulated studies draw runs here, one at a time. A shape has a mean that is
known, so that arms of different shapes can be given the same one. This module judges nothing and stores nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import sqrt
from typing import cast

from numpy.random import Generator
from scipy import optimize, stats

BASE = 0.2
"""The score before training, which a run that failed counts with."""
TRAININGS = 4
"""So often a run is trained before the system gives it up."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """One run: its true score, whether it failed by its own doing, how often it was trained, and whether it never gave
    a score."""

    score: float
    is_failed: bool = False
    trainings: int = 1
    is_missing: bool = False


Shape = Callable[[Generator], Drawn]


def normal(mean: float, deviation: float) -> Shape:
    return lambda random: Drawn(mean + deviation * random.standard_normal())


def heavy_tailed(mean: float, deviation: float) -> Shape:
    """Student's t with three degrees of freedom, whose variance is 3."""
    return lambda random: Drawn(mean + deviation / sqrt(3) * random.standard_t(3))


def beta(mean: float, deviation: float) -> Shape:
    """Bounded by 0 and 1, and skewed near either."""
    precision = mean * (1 - mean) / deviation**2 - 1
    return lambda random: Drawn(float(random.beta(mean * precision, (1 - mean) * precision)))


def clipped(mean: float, deviation: float) -> Shape:
    """Normal, with all that is beyond 0 and 1 at the end; `mean` is what is left after the cut."""

    def excess(center: float) -> float:
        low, high = -center / deviation, (1 - center) / deviation
        inside = center * (stats.norm.cdf(high) - stats.norm.cdf(low))
        beside = deviation * (stats.norm.pdf(low) - stats.norm.pdf(high)) + stats.norm.sf(high)
        return float(inside + beside) - mean

    center = cast(float, optimize.brentq(excess, -1.0, 2.0))
    return lambda random: Drawn(min(max(center + deviation * random.standard_normal(), 0.0), 1.0))


def two_groups(high: float, low: float, share_low: float, deviation: float) -> Shape:
    """Runs of which a share ends in another place: a collapse that nobody sees, or a second optimum."""

    def draw(random: Generator) -> Drawn:
        place = low if random.random() < share_low else high
        return Drawn(place + deviation * random.standard_normal())

    return draw


def failing(shape: Shape, share: float) -> Shape:
    """Runs of which a share fails and is known to have failed."""

    def draw(random: Generator) -> Drawn:
        return replace(shape(random), is_failed=random.random() < share)

    return draw


def hiding(shape: Shape, below: float) -> Shape:
    """A program that leaves out a run whose score it does not like, and is not trained again."""

    def draw(random: Generator) -> Drawn:
        drawn = shape(random)
        return replace(drawn, is_missing=drawn.score < below)

    return draw


def choosy(shape: Shape, below: float, trainings: int = TRAININGS) -> Shape:
    """A program that breaks its training where it does not like the score, in such a way that the system takes it for
    its own fault and trains it again; what it never likes is missing in the end."""

    def draw(random: Generator) -> Drawn:
        drawn = shape(random)
        for number in range(1, trainings):
            if drawn.score >= below:
                return replace(drawn, trainings=number)
            drawn = shape(random)
        return replace(drawn, trainings=trainings, is_missing=drawn.score < below)

    return draw
