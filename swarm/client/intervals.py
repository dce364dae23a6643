"""The 95 % interval of a mean reward, from single rewards or from recorded sums of them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

Z95 = 1.96
ROUNDING = 1e-9


def interval(rewards: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the mean: Wilson's if all rewards are 0 or 1, else the normal one.

    The normal interval needs at least two rewards. Without them its ends are infinite.
    """
    number = len(rewards)
    if not number:
        return -math.inf, math.inf
    mean = statistics.fmean(rewards)
    if all(reward in (0, 1) for reward in rewards):
        return _wilson(mean, number)
    return _normal(mean, statistics.stdev(rewards) / math.sqrt(number) if number > 1 else None)


def interval_on_record(mean: float, stderr: float | None, successes: int, number: int) -> tuple[float, float]:
    """Return the 95 % interval of a recorded score, whose single rewards are not known.

    If the rewards add up to the successes, they are taken to be all 0 or 1.
    """
    if abs(mean * number - successes) <= ROUNDING * number:
        return _wilson(mean, number)
    return _normal(mean, stderr)


def _normal(mean: float, stderr: float | None) -> tuple[float, float]:
    margin = math.inf if stderr is None else Z95 * stderr
    return mean - margin, mean + margin


def _wilson(mean: float, number: int) -> tuple[float, float]:
    shrunk = 1 + Z95**2 / number
    centre = (mean + Z95**2 / (2 * number)) / shrunk
    margin = Z95 / shrunk * math.sqrt(mean * (1 - mean) / number + Z95**2 / (4 * number**2))
    return max(0.0, min(mean, centre - margin)), min(1.0, max(mean, centre + margin))
