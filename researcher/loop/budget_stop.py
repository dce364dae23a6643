"""Stops the runs in training once the time or the GPU-hours of the study are spent.

Place in the flow: `monitor` asks at the end of every round. A run that is stopped so is no failure of its arm and not
its result either: it has no score, is named as what it is, and is launched again when the budget is raised. A run that
has been trained is still scored, which costs less than it did. This module knows no amounts; study/budget.py does.
"""

from __future__ import annotations

from researcher.execution.runs import BUDGET
from researcher.loop.deps import Deps, Phase
from researcher.loop.outages import stop


def stop_over_budget(deps: Deps) -> bool:
    """Whether the budget is spent; then no run trains any more, and none waits for a server."""
    reason = deps.ledger.find_exhausted()
    if reason is None:
        return False
    for active in deps.active_runs:
        if active.phase is Phase.TRAINING or active.is_waiting or active.away_since is not None:
            sentence = f"stopped by the budget at step {active.copied_step} of {active.steps}: {reason}"
            stop(deps, active, BUDGET, sentence, event="run.stopped", said=f"is {sentence}")
    return True
