"""The amount of training of an arm: episodes, tokens and seconds, from the curves of its runs.

Place in the flow: facts.py gathers these for every arm. The report shows them beside the scores, so that a reader sees
what was equal. This module judges nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from experiments_db import ExperimentStore
from researcher.record.runs import TRAINING_SECONDS

EPISODES = "batch/episodes"
TOKENS = ("rollout/trained_tokens", "actor/trained_tokens")
"""The metrics of a step: the episodes of its batch, and the tokens that the model wrote in them.

The engine `fake` has another name for the tokens."""


@dataclass(frozen=True, slots=True)
class Amounts:
    """The amounts that one run of an arm trained with, on average over its runs; None if no run recorded them."""

    steps: float | None = None
    episodes: float | None = None
    tokens: float | None = None
    seconds: float | None = None


def gather_amounts(store: ExperimentStore, run_ids: Sequence[str]) -> Amounts:
    """Return the sums over the steps of each run, averaged over the runs."""
    names = (EPISODES, *TOKENS, TRAINING_SECONDS)
    sums: dict[str, dict[str, float]] = {name: defaultdict(float) for name in names}
    steps: dict[str, float] = defaultdict(float)
    for point in store.list_metrics(run_ids, names=names):
        if point.value is not None:
            sums[point.name][point.run_id] += point.value
            steps[point.run_id] = max(steps[point.run_id], point.step)
    tokens = next((sums[name] for name in TOKENS if sums[name]), {})
    return Amounts(*(_mean(each) for each in (steps, sums[EPISODES], tokens, sums[TRAINING_SECONDS])))


def _mean(sums: dict[str, float]) -> float | None:
    return sum(sums.values()) / len(sums) if sums else None
