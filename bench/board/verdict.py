"""Whether a figure changed by more than noise.

Place in the flow: command.py hands over what rounds.py measured. Knows nothing of processes and versions.

Each round gives one pair of values, measured in turns within seconds, so that what else the machine does falls on both.
Judged is the mean of the logarithms of their ratios, by Student's t over rounds. A figure got worse only if its whole
interval lies on the worse side of no change, and the mean is beyond the least effect that counts for this figure. The
probability that a comparison calls anything worse that is not, 1 %, is divided among its figures (Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from scipy import special

from bench.board.figures import FIGURES, Figure

ERROR = 0.01
"""The probability that a comparison of equals calls any figure worse; the same for better."""
LEAST_ROUNDS = 4
"""With fewer the interval is so wide that it hides a change of one half."""


class Verdict(StrEnum):
    WORSE = "worse"
    BETTER = "better"
    WITHIN_NOISE = "within noise"
    TOO_FEW_ROUNDS = "too few rounds"


@dataclass(frozen=True, slots=True)
class Pair:
    """One figure of both versions in one round. Both are above 0."""

    new: float
    old: float


@dataclass(frozen=True, slots=True)
class Change:
    """`new` and `old` are medians over rounds, in the figure's unit. `change` is the relative change from old to new,
    0.2 for 20 % more, and lies between `low` and `high`; the three are None if there were too few rounds."""

    new: float
    old: float
    rounds: int
    verdict: Verdict
    change: float | None = None
    low: float | None = None
    high: float | None = None


def judge_all(measured: Mapping[str, Sequence[Pair]]) -> dict[str, Change]:
    """One change for each figure that was measured at least once."""
    found = {name: pairs for name, pairs in measured.items() if pairs}
    return {name: judge(FIGURES[name], pairs, ERROR / len(found)) for name, pairs in found.items()}


def judge(figure: Figure, pairs: Sequence[Pair], error: float) -> Change:
    """`error` is the probability that the true change is below the interval, and also that it is above."""
    new, old = float(np.median([pair.new for pair in pairs])), float(np.median([pair.old for pair in pairs]))
    rounds = len(pairs)
    if rounds < LEAST_ROUNDS:
        return Change(new, old, rounds, Verdict.TOO_FEW_ROUNDS)
    ratios = np.log([pair.new / pair.old for pair in pairs])
    mean = float(np.mean(ratios))
    margin = float(special.stdtrit(rounds - 1, 1 - error) * np.std(ratios, ddof=1) / math.sqrt(rounds))
    verdict = _decide(figure, mean, margin)
    return Change(new, old, rounds, verdict, math.expm1(mean), math.expm1(mean - margin), math.expm1(mean + margin))


def _decide(figure: Figure, mean: float, margin: float) -> Verdict:
    if abs(mean) <= margin or abs(mean) < math.log1p(figure.least_effect):
        return Verdict.WITHIN_NOISE
    return Verdict.BETTER if (mean > 0) is figure.is_more_better else Verdict.WORSE
