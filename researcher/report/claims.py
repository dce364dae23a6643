"""Checks the numbers in a planner's text: a sentence whose numbers the database does not know is left out.

Place in the flow: the report passes a planner's interpretation through here before it is printed. A number is known if
some fact of the study, rounded to as many digits as the text gives, is that number; a percentage may also be a fact
times 100. This module knows nothing of where texts come from.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from researcher.report.facts import ArmFacts, StudyFacts

_SENTENCES = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"'(\[])|\n+")
# A number stands alone: not part of a name such as seed-3 or nano2, but the value in lr=0.001 or 95%.
_NUMBERS = re.compile(r"(?<![\w.])[-+−]?\d+(?:,\d{3})*(?:\.\d+)?(?:[eE][-+−]?\d{1,2})?(?![\w]|\.\d)\s?(%)?")
# Half a unit of the last digit, with room for the representation of decimals as floats.
ROUNDING = 0.5 + 1e-6


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence of a planner's text. `unknown` are the numbers in it that the database does not have."""

    text: str
    unknown: tuple[str, ...]


def check_claims(text: str, known: Iterable[float]) -> tuple[Sentence, ...]:
    """The sentences of `text` in order, each with its unknown numbers."""
    values = sorted({abs(value) for value in known if math.isfinite(value)})
    sentences = (part.strip() for part in _SENTENCES.split(text))
    return tuple(Sentence(part, tuple(_unknown_numbers(part, values))) for part in sentences if part)


def known_numbers(facts: StudyFacts) -> Iterator[float]:
    """Every number of a study that a sentence about it may state."""
    charter = facts.charter
    confidence = 1 - charter.rule.alpha
    yield from (charter.rule.alpha, charter.rule.min_effect, charter.rule.min_seeds, charter.eval_episodes)
    yield from (confidence, 100 * confidence, len(facts.arms), len(facts.runs), len(facts.failed_runs))
    yield from (len(facts.findings), len(facts.hypotheses), len(facts.decisions))
    counts: dict[str, int] = {}
    for finding in facts.findings:
        counts[finding.verdict] = counts.get(finding.verdict, 0) + 1
        for value in (finding.effect, finding.ci_low, finding.ci_high, finding.p_value, finding.p_adjusted):
            if value is not None:
                yield value
    yield from counts.values()
    for arm in facts.arms:
        yield from _numbers_of_arm(arm)


def _numbers_of_arm(arm: ArmFacts) -> Iterator[float]:
    for summary in (arm.search, arm.base, arm.sealed):
        if summary is not None:
            yield from (summary.mean, summary.ci_low, summary.ci_high, len(summary.scores), *summary.scores.values())
    yield arm.search.mean - arm.base.mean
    yield from (item.run.seed for item in arm.runs)
    for value in (*arm.experiment.factors.values(), *arm.experiment.job.values()):
        if isinstance(value, int | float):
            yield float(value)


def _unknown_numbers(sentence: str, values: list[float]) -> Iterator[str]:
    for match in _NUMBERS.finditer(sentence):
        written = match.group().strip()
        digits = written.rstrip("% ").replace(",", "").replace("−", "-").lstrip("+-")
        number, unit = float(digits), _unit_of(digits)
        scales = (1.0, 100.0) if match.group(1) else (1.0,)
        if not any(abs(value * scale - number) <= ROUNDING * unit for value in values for scale in scales):
            yield written


def _unit_of(digits: str) -> float:
    """One unit of the last digit given: 0.01 for "0.85", 1e-4 for "1e-4"."""
    mantissa, _, exponent = digits.lower().partition("e")
    decimals = len(mantissa.partition(".")[2])
    return 10.0 ** (int(exponent or 0) - decimals)
