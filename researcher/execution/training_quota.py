"""The training quota of a run: the tokens or seconds that end its training, where the charter gives all arms the same.

Place in the flow: the evaluator passes the options to the process that trains. Monitor asks whether a program that
ended by itself has used its quota. This module knows nothing of servers or scores.
"""

from __future__ import annotations

from experiments_db import ExperimentStore
from researcher.charter import Charter, ComparedAt
from researcher.execution.runs import TRAINING_SECONDS


def ends_at_a_quota(charter: Charter) -> bool:
    """Return whether a run ends by itself, with the step that reaches its training quota."""
    return charter.compared_at in (ComparedAt.TOKENS, ComparedAt.TIME)


def quota_options(charter: Charter, store: ExperimentStore, run_id: str) -> tuple[str, ...]:
    """Return the options of `python -m swarm.program` that end a run at its training quota.

    Training before an interruption counts: the server knows the tokens, and the database has the seconds.
    """
    if charter.compared_at == ComparedAt.TOKENS:
        return ("--until-tokens", str(charter.amount))
    if charter.compared_at == ComparedAt.TIME:
        points = store.list_metrics([run_id], names=[TRAINING_SECONDS])
        return ("--until-seconds", str(charter.amount - sum(point.value or 0.0 for point in points)))
    return ()
