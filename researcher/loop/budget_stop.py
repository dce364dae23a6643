"""The stop of runs in training once the study's budget of time or GPU-hours is used up.

Place in the flow: `monitor` asks at the end of every round. A run that is stopped this way is neither a failure nor a
result of its arm. It has no score, is named as stopped by the budget, and is launched again when the budget is raised.
A run that has finished training is still scored, because a score costs less than the training did. This module knows no
amounts; record/budget.py does.
"""

from __future__ import annotations

from researcher.loop.deps import Deps, Phase
from researcher.loop.outages import stop
from researcher.record.runs import BUDGET


def stop_over_budget(deps: Deps) -> bool:
    """Return whether the budget is used up; if so, stop every run that trains or waits for a server."""
    reason = deps.ledger.find_exhausted()
    if reason is None:
        return False
    for active in deps.active_runs:
        if active.phase is Phase.TRAINING or active.is_waiting or active.away_since is not None:
            sentence = f"stopped by the budget at step {active.copied_step} of {active.steps}: {reason}"
            stop(deps, active, BUDGET, sentence, event="run.stopped", note=f"is {sentence}")
    return True
