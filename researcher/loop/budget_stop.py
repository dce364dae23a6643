"""Stops the runs in training once the time or the GPU-hours of the study are spent.

Place in the flow: `monitor` asks at the end of every round. A run that is stopped so is no failure of its arm and not
its result either: it has no score, is named as what it is, and is launched again when the budget is raised. A run that
has been trained is still scored, which costs less than it did. This module knows no amounts; study/budget.py does.
"""

from __future__ import annotations

from experiments_db import RunStatus
from researcher.execution.runs import BUDGET
from researcher.loop.deps import ActiveRun, Deps, Phase
from researcher.loop.outages import drop


def stop_over_budget(deps: Deps) -> bool:
    """Whether the budget is spent; then no run trains any more, and none waits for a server."""
    reason = deps.ledger.find_exhausted()
    if reason is None:
        return False
    for active in deps.active_runs:
        if active.phase is Phase.TRAINING or active.is_waiting or active.away_since is not None:
            _stop(deps, active, reason)
    return True


def _stop(deps: Deps, active: ActiveRun, reason: str) -> None:
    sentence = f"stopped by the budget at step {active.copied_step} of {active.steps}: {reason}"
    found = {"kind": BUDGET, "sentence": sentence, "is_retried": True}
    deps.store.update_run(active.run_id, status=RunStatus.STOPPED, exit_reason=sentence, diagnosis=found)
    deps.log.warn("run.stopped", f"{active.name} is {sentence}", run_id=active.run_id)
    drop(deps, active)
