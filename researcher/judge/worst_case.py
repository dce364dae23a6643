"""The worst case that a verdict must survive: the same plan with everything unknown about the arm at its worst."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import fmean

from scipy import special

from researcher.charter import Charter
from researcher.judge.samples import ScoredRun

Runs = Mapping[int, ScoredRun]
"""The runs of one arm by seed."""

RETRIED_LEVEL = 0.07
"""The probability that the true share of retried runs exceeds the bound.

It is the largest value with which the bank of test cases passes. The larger it is, the smaller is the effect that
survives one retried run in nine."""


def worst_score(charter: Charter, seen: Iterable[float]) -> float | None:
    """Return the worst end of the range; if no range is known, the worst of the scores `seen`."""
    if charter.judged_range is not None:
        return charter.judged_range[0 if charter.sign > 0 else 1]
    return (min if charter.sign > 0 else max)(seen, default=None)


def with_missing(runs: Runs, missing: Mapping[int, str], worst: float) -> Runs:
    """Return the runs of an arm with its missing seeds at the worst score.

    A program may hide a bad seed by giving no score, or a bad training by causing a retry. Neither can be told from a
    fault of the system. The baseline gains nothing by hiding runs, so its runs stay as they are.
    """
    return {**runs, **{seed: ScoredRun("", worst, 0.0) for seed in missing if seed not in runs}}


def loss_by_retries(charter: Charter, runs: Runs, baseline: Runs, worst: float) -> float:
    """Return by how much the true mean of an arm may be worse than that of its runs, because of retried trainings.

    The share of retried trainings is taken at its upper bound. Each counts as a failed run, or as the lowest score seen
    if that is lower.
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
    """Return the largest share of all runs that is plausible if `seen` of `runs` have a property.

    It is the one-sided bound of Clopper & Pearson (1934, Biometrika 26:404-413).
    """
    return 1.0 if seen >= runs else float(special.betaincinv(seen + 1, runs - seen, 1 - level))
