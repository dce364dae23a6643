"""Scores of what finished runs have saved: checkpoints go to free servers, as many at a time as there are.

Place in the flow: final_test scores the test split this way, score_steps what was kept in mid-training. Which
checkpoints are scored, and what their scores mean, is for those who call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from experiments_db import Run
from researcher.execution.servers import Slot
from researcher.loop.deps import Deps

WAIT_S = 1.0


@dataclass(frozen=True, slots=True)
class CheckpointScore:
    """One score to be measured: `key` is its own among all, `name` is for people. `measure` is given the run and the
    address of a server."""

    key: str
    name: str
    run: Run
    measure: Callable[[Run, str], None]


def score_checkpoints(deps: Deps, wanted: Sequence[CheckpointScore]) -> None:
    """Returns when all have been tried; one that fails is noted as a warning and has no score.

    Raises Drained if the study is asked to stop meanwhile; what has been scored stays scored.
    """
    pending = list(wanted)
    busy: dict[str, tuple[CheckpointScore, Slot]] = {}
    while pending or busy:
        while pending and (slot := deps.pool.take()) is not None:
            score = pending.pop(0)
            busy[score.key] = (score, slot)
            url = str(slot.url)
            deps.background.submit(score.key, lambda score=score, url=url: score.measure(score.run, url))
        deps.background.wait(WAIT_S)
        deps.background.check()
        for score, slot in list(busy.values()):
            if (task := deps.background.take(score.key)) is None:
                continue
            del busy[score.key]
            deps.pool.give_back(slot)
            if (error := task.exception()) is not None:
                deps.log.warn("run.unscored", f"{score.run.id} has no {score.name}: {error}", run_id=score.run.id)
