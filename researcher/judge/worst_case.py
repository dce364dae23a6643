"""What the verdict on an arm is held against: the same plan with all that is not known of the arm at its worst.

Place in the flow: judgement.py asks here for the runs of such a plan and keeps an arm only if it would be kept with
them. This module tests nothing.

A seed without a score may be one that the arm did not want to show, and a training that was begun anew may be one that
the arm did not like. Neither can be told from a fault of the system by looking at it. So a missing seed counts with the
worst value of the metric, and a run that was trained again as one that failed. The baseline has nothing to gain by what
it leaves out, so its runs stand as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from researcher.types import Charter, ScoredRun

Runs = Mapping[int, ScoredRun]
"""The runs of one arm by seed."""


def worst_score(charter: Charter, seen: Iterable[float]) -> float | None:
    """The worst end of the range; where no range is known, the worst score of those `seen`."""
    is_minimized = charter.direction == "minimize"
    if charter.metric_range is not None:
        return charter.metric_range[1 if is_minimized else 0]
    return (max if is_minimized else min)(seen, default=None)


def at_worst(charter: Charter, runs: Runs, missing: Mapping[int, str], worst: float) -> Runs:
    """The runs of an arm with its missing seeds, and with those that were trained again as if they had failed."""
    shown = {seed: _as_failed(charter, run, worst) if run.retries else run for seed, run in runs.items()}
    return {**shown, **{seed: ScoredRun("", worst, 0.0) for seed in missing if seed not in runs}}


def _as_failed(charter: Charter, run: ScoredRun, worst: float) -> ScoredRun:
    """The run with the score that the charter gives to one that failed, or with its own if that is worse."""
    failed = run.base if charter.failed_score == "base" and run.base is not None else worst
    is_minimized = charter.direction == "minimize"
    return replace(run, score=(max if is_minimized else min)(run.score, failed))
