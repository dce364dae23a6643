"""Which of its values a topic compares the others with: "from A to B", "better than A", "B instead of A".

Place in the flow: topic.py asks once the factors are read; designs.py then makes the arm of that value the baseline,
where otherwise it is the one that leaves the job as it is. This module knows nothing of arms or jobs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from researcher.planner.factors import ALGORITHMS, Factor, Level
from researcher.planner.reading.numbers import NUMBER, parse_number

_COMPARED_WITH = (
    r"\b(?:from|than|instead of|in place of|compared (?:to|with)|relative to|baseline(?: of| is|:)?)\s+"
    r"(?:(?:an?|the|its|using|with)\s+)*(?:(?!other\b)[a-z_-]+\s+){0,3}?(?:of\s+|=\s*)?"
)
_NUMBER_AFTER = re.compile(rf"{_COMPARED_WITH}({NUMBER})", re.IGNORECASE)


def mark_baselines(text: str, factors: Sequence[Factor]) -> list[Factor]:
    """The factors, each with the level that the topic compares the others with, where it says so of exactly one.

    A number that is a level of two factors says nothing of either.
    """
    found = [[level for level in factor.levels if _is_named(text, factor, level)] for factor in factors]
    numbers = [level.factors[factor.name] for factor, levels in zip(factors, found, strict=True) for level in levels]
    return [
        replace(factor, compared_with=levels[0])
        if len(levels) == 1 and factor.explicit and numbers.count(levels[0].factors[factor.name]) == 1
        else factor
        for factor, levels in zip(factors, found, strict=True)
    ]


def _is_named(text: str, factor: Factor, level: Level) -> bool:
    value = level.factors.get(factor.name)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value in set(_numbers_compared_with(text))
    name = dict(ALGORITHMS).get(level.name, re.escape(level.name))
    return re.search(rf"{_COMPARED_WITH}(?<![\w+-]){name}(?![\w+-])", text, re.IGNORECASE) is not None


def _numbers_compared_with(text: str) -> Iterator[float]:
    for match in _NUMBER_AFTER.finditer(text):
        yield parse_number(match.group(1))
