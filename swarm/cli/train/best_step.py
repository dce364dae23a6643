"""The step of a training with the best held-out score, at which `swarm train` ends it.

Place in the flow: training.py asks for it once all steps are done and scored. The record of the run then ends where the
weights do. The module does not know how a score is measured.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from swarm.cli.held_out_score import HeldOutScore
from swarm.errors import CheckpointError, NotFound

if TYPE_CHECKING:
    from swarm.client import SwarmClient


@dataclass(frozen=True, slots=True)
class HeldOutStep:
    """The held-out score of the weights after `step` steps. The step is None if they changed while it was measured."""

    step: int | None
    score: HeldOutScore


def best_of(scores: Iterable[HeldOutStep], last: HeldOutStep) -> HeldOutStep:
    """Return the best score of a trained step. Of equally good ones it is the last, and otherwise the newest."""
    best = last
    if last.step is None or last.score.mean is None:
        return last
    for each in sorted(scores, key=lambda scored: scored.step or 0):
        # A run cannot end at step 0, with the model that it began with.
        is_earlier = each.step is not None and 0 < each.step < last.step
        if not is_earlier or each.score.mean is None or best.score.mean is None:
            continue
        if each.score.mean > best.score.mean or (best is not last and each.score.mean == best.score.mean):
            best = each
    return best


def end_at(client: SwarmClient, step: int) -> str | None:
    """Load the weights of an earlier step, and end the run there. Return why that is impossible, or None."""
    try:
        client.load_checkpoint(step)
    except (NotFound, CheckpointError) as error:
        return error.message
    client.change_job({"total_steps": step})
    return None
