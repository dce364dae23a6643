"""The note of a verdict: its subject, its limits and the checks that it went through.

Place in the flow: judgement.py hands in one decided comparison and gets its note. This module decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean

from experiments_db import Verdict
from researcher.analysis import GainPart
from researcher.charter import Charter
from researcher.judge.worst_case import Runs, largest_share

MOST_LISTED = 3
"""The largest number of seeds that a note names one by one."""


@dataclass(frozen=True, slots=True)
class Weighed:
    """One comparison with the checks of its verdict.

    `by_test` is the verdict of the test, and `verdict` is the one after the checks. `outlier` is the arm and the seed
    of a run that lies apart from the arm's others. `is_kept_at_worst` is whether the arm would be kept in the worst
    case.
    """

    arm: str
    runs: Runs
    baseline: Runs
    by_test: Verdict
    verdict: Verdict
    missing: Mapping[int, str]
    outlier: tuple[str, int] | None
    is_kept_at_worst: bool
    training_gain: GainPart


def count_failures(runs: Runs) -> int:
    return sum(bool(run.failure) for run in runs.values())


def describe(charter: Charter, item: Weighed) -> list[str]:
    notes = [*_failures(charter, item), *_unknown(item), *_outlier(charter, item), *_training(charter, item)]
    if item.verdict is Verdict.KEEP:
        failures, runs = count_failures(item.runs), len(item.runs)
        share = largest_share(failures, runs, charter.rule.alpha)
        seen = f"none of {runs} runs" if not failures else f"{failures} of {runs} runs"
        notes.append(
            f"this is about a typical run: {seen} failed or collapsed, which leaves it possible that up to "
            f"{100 * share:.0f} % of all runs do"
        )
    return notes


def _failures(charter: Charter, item: Weighed) -> list[str]:
    failures, against = count_failures(item.runs), count_failures(item.baseline)
    if not failures:
        return []
    kinds = ", ".join(sorted({run.failure for run in item.runs.values() if run.failure}))
    notes = [
        f"{failures} of {len(item.runs)} runs failed ({kinds}), {against} of {len(item.baseline)} of {charter.baseline}"
    ]
    trained = [run.score for run in item.runs.values() if not run.failure]
    if trained and against < len(item.baseline):
        difference = fmean(trained) - fmean(run.score for run in item.baseline.values() if not run.failure)
        is_better = charter.sign * difference > 0
        notes.append(f"{'better' if is_better else 'not better'} where it trained ({difference:+.3f})")
    return notes


def _unknown(item: Weighed) -> list[str]:
    notes: list[str] = []
    if item.missing:
        planned = len(item.runs) + len(item.missing)
        notes.append(f"{len(item.missing)} of {planned} seeds have no score ({_list(item.missing.items())})")
    retried = {seed: run.retries[-1] for seed, run in item.runs.items() if run.retries}
    if retried:
        notes.append(f"{len(retried)} of {len(item.runs)} runs were trained again ({_list(retried.items())})")
    if notes and item.by_test is Verdict.KEEP:
        at_worst = " and ".join(
            (["missing seeds at the worst value"] if item.missing else [])
            + (["as many failed trainings as these retries leave possible"] if retried else [])
        )
        notes.append(f"{'kept also' if item.is_kept_at_worst else 'not kept'} with {at_worst}")
    return notes


def _list(reasons: Iterable[tuple[int, str]]) -> str:
    known = sorted(reasons)
    listed = [f"seed {seed}: {reason}" for seed, reason in known[:MOST_LISTED]]
    return "; ".join([*listed, *(["and others"] if len(known) > MOST_LISTED else [])])


def _outlier(charter: Charter, item: Weighed) -> list[str]:
    if item.outlier is None:
        return []
    arm, seed = item.outlier
    runs = item.runs if arm == item.arm else item.baseline
    rest = [run.score for other, run in runs.items() if other != seed]
    return [
        f"the run of {arm} with seed {seed} ({runs[seed].score:.3f}) lies far from its others ({min(rest):.3f} to "
        f"{max(rest):.3f}), and so few runs do not say how often that happens: more runs would"
    ]


def _training(charter: Charter, item: Weighed) -> list[str]:
    """Return a note on a kept arm whose training is not shown to have added more than the baseline's."""
    part = item.training_gain
    gain = charter.sign * part.value
    if item.verdict is not Verdict.KEEP or math.isnan(part.p) or (part.p < charter.rule.alpha and gain > 0):
        return []
    return [f"better trained is not shown: training added {part.value:+.3f} more to it than to {charter.baseline}"]
