"""What the verdict on an arm is held against: the same plan with all that is not known of the arm at its worst.

Place in the flow: judgement.py asks here for the runs of such a plan and keeps an arm only if it would be kept with
them. This module tests nothing.

A seed without a score may be one that the arm did not want to show, and a training that was begun anew may be one that
the arm did not like. Neither can be told from a fault of the system by looking at it. So a missing seed counts with the
worst value of the metric. Of trainings that were begun anew the question is how often that happens: as large a share of
the arm's runs as these leave possible is taken to have failed. The baseline has nothing to gain by what it leaves out,
so its runs stand as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import fmean

from scipy import special

from researcher.types import Charter, ScoredRun

Runs = Mapping[int, ScoredRun]
"""The runs of one arm by seed."""

RETRIED_LEVEL = 0.07
"""The probability that more runs are trained again in truth than is taken for possible. It is the largest with which
the bank of cases holds: the larger, the smaller is the effect that survives one such run in nine."""


def worst_score(charter: Charter, seen: Iterable[float]) -> float | None:
    """The worst end of the range; where no range is known, the worst score of those `seen`."""
    if charter.judged_range is not None:
        return charter.judged_range[0 if charter.sign > 0 else 1]
    return (min if charter.sign > 0 else max)(seen, default=None)


def with_missing(runs: Runs, missing: Mapping[int, str], worst: float) -> Runs:
    """The runs of an arm with its missing seeds at the worst score."""
    return {**runs, **{seed: ScoredRun("", worst, 0.0) for seed in missing if seed not in runs}}


def loss_by_retries(charter: Charter, runs: Runs, baseline: Runs, worst: float) -> float:
    """How much worse the mean of an arm may be than that of its runs, because some of them were trained again.

    The mean of what would have come of the first trainings is at least that of the runs shown, but for the share that
    was trained again, and that share is taken to be at its bound. It counts as a run that failed does, or as the
    lowest score that was seen if that is lower.
    """
    retried = sum(bool(run.retries) for run in runs.values())
    if not retried:
        return 0.0
    sign = charter.sign
    bases = [run.base for run in runs.values() if run.base is not None]
    failed = fmean(bases) if charter.failed_score == "base" and bases else worst
    lowest = min([sign * failed, *(sign * run.score for each in (runs, baseline) for run in each.values())])
    share = largest_share(retried, len(runs), RETRIED_LEVEL)
    return share * max(0.0, sign * fmean(run.score for run in runs.values()) - lowest)


def largest_share(seen: int, runs: int, level: float) -> float:
    """The largest share of all runs of an arm of which `seen` among `runs` are a sample: the one-sided bound of Clopper
    & Pearson (1934, Biometrika 26:404-413)."""
    return 1.0 if seen >= runs else float(special.betaincinv(seen + 1, runs - seen, 1 - level))
