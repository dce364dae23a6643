"""The training quota of a run: the tokens, seconds or steps that end its training before its job does.

Place in the flow: the evaluator passes the options to the process that trains. Monitor asks whether a program that
ended by itself has used its quota. An exploring run ends at its rung, and has that part of the tokens or seconds that
the charter gives to a whole run. This module knows nothing of servers or scores.
"""

from __future__ import annotations

from experiments_db import Experiment, ExperimentStore, Run
from researcher.charter import Charter, ComparedAt
from researcher.record.runs import TRAINING_SECONDS, cost_of


def ends_at_a_quota(charter: Charter, run: Run) -> bool:
    """Return whether a run ends by itself, with the step that reaches its training quota."""
    return bool(run.rung) or charter.compared_at in (ComparedAt.TOKENS, ComparedAt.TIME)


def quota_options(charter: Charter, store: ExperimentStore, run: Run, experiment: Experiment) -> tuple[str, ...]:
    """Return the options of `python -m swarm.program` that end a run at its training quota.

    Training before an interruption counts: the server knows the tokens, and the database has the seconds.
    """
    steps = ("--until-steps", str(run.rung)) if run.rung else ()
    amount = charter.amount * cost_of(run, experiment)
    if charter.compared_at == ComparedAt.TOKENS:
        return (*steps, "--until-tokens", str(amount))
    if charter.compared_at == ComparedAt.TIME:
        points = store.list_metrics([run.id], names=[TRAINING_SECONDS])
        return (*steps, "--until-seconds", str(amount - sum(point.value or 0.0 for point in points)))
    return steps
