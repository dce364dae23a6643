"""The share of a run: the tokens or seconds of training that end it, where the charter compares arms at these.

Place in the flow: the evaluator gives the options to the process that trains, and monitor asks whether a program that
has ended by itself has had its share. This module knows no servers and no scores.
"""

from __future__ import annotations

from experiments_db import ExperimentStore
from researcher.execution.runs import TRAINING_SECONDS
from researcher.types import Charter, ComparedAt


def ends_at_a_share(charter: Charter) -> bool:
    """Whether a run ends by itself, with the step that reaches its share."""
    return charter.compared_at in (ComparedAt.TOKENS, ComparedAt.TIME)


def share_options(charter: Charter, store: ExperimentStore, run_id: str) -> tuple[str, ...]:
    """The options of `python -m swarm.program` that end a run at its share. What it has trained before it is taken up
    again counts: a server knows the tokens, and the seconds are in the database."""
    if charter.compared_at == ComparedAt.TOKENS:
        return ("--until-tokens", str(charter.amount))
    if charter.compared_at == ComparedAt.TIME:
        points = store.list_metrics([run_id], names=[TRAINING_SECONDS])
        return ("--until-seconds", str(charter.amount - sum(point.value or 0.0 for point in points)))
    return ()
