"""The 95 % interval of a share, such as that of solved tasks."""

from __future__ import annotations

import math

Z95 = 1.96


def wilson(mean: float, number: int) -> tuple[float, float]:
    """Return the 95 % interval of a share of so many (Wilson 1927, JASA 22:209-212)."""
    shrunk = 1 + Z95**2 / number
    centre = (mean + Z95**2 / (2 * number)) / shrunk
    margin = Z95 / shrunk * math.sqrt(mean * (1 - mean) / number + Z95**2 / (4 * number**2))
    return max(0.0, min(mean, centre - margin)), min(1.0, max(mean, centre + margin))
