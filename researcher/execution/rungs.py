"""Rungs: the steps at which exploring runs end, and what such a run costs.

Place in the flow: a round of exploration takes its steps from here, launch and the check of the record their charges.
This module knows nothing of scores, policies or servers.
"""

from __future__ import annotations

from collections.abc import Sequence

from experiments_db import Experiment, Run
from researcher.execution.runs import total_steps
from researcher.phases import FROM_RUNG


def steps_at(share: float, total: int) -> int:
    """Return the step at which a part of the training ends, at least 1."""
    return max(1, round(share * total))


def shares_at(rungs: Sequence[float], total: int, step: int) -> tuple[float, ...]:
    """Return the parts of the full training that end at a step; in a short training there are several."""
    return tuple(share for share in rungs if steps_at(share, total) == step)


def cost_of(run: Run, experiment: Experiment) -> float:
    """Return the full runs that a run counts as; an exploring run counts as the part that it trains itself."""
    if not run.rung:
        return 1.0
    return (run.rung - int(run.external_ids.get(FROM_RUNG, 0))) / total_steps(experiment.job)
