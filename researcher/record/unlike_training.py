"""The arms whose attempts in scores are not like those of their training, by the record of the servers."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from experiments_db import Experiment, ExperimentStore, Run
from researcher.phases import COST, FINAL, TEST
from researcher.player import agent_of, plays_its_own
from researcher.record.costs import ArmCost, cost_from_json, mean_cost, why_not_as_trained
from researcher.record.log import charter_from_json

REPLY_LENGTH = "response_length/mean"
"""The curve of the sampled tokens of an episode."""
END_OF_TRAINING = 0.1
"""The last part of a training, whose weights are nearly those that are scored."""


def find_not_as_trained(
    store: ExperimentStore, study_id: str, runs: Mapping[str, tuple[Run, Experiment]]
) -> dict[str, str]:
    """Return the arms whose own agent does more in evaluation than in training, of any one run.

    The baseline stays in, because all others are compared with it.
    """
    stored = store.find_charter(study_id)
    if stored is None or not plays_its_own(charter_from_json(stored.document), FINAL):
        return {}
    out: dict[str, str] = {}
    for phase in (FINAL, TEST):
        costs = _costs_of(store, runs, phase)
        usual = mean_cost(cost for run_id, cost in costs.items() if runs[run_id][1].is_baseline)
        for run_id, cost in costs.items():
            _, arm = runs[run_id]
            if arm.is_baseline or agent_of(arm).is_plain:
                continue
            why = why_not_as_trained(
                cost,
                usual,
                has_same_tasks=arm.train_environment is None,
                longer_replies=_growth_of_replies(store, run_id),
            )
            if why:
                out.setdefault(arm.name, why)
    return out


def _growth_of_replies(store: ExperimentStore, run_id: str) -> float:
    """Return by what factor an episode's replies were longer at the end of training than on average; 1 if unknown."""
    points = sorted(store.list_metrics([run_id], names=[REPLY_LENGTH]), key=lambda point: point.step)
    lengths = [point.value for point in points if point.value is not None]
    last = lengths[-max(1, round(END_OF_TRAINING * len(lengths))) :]
    return fmean(last) / fmean(lengths) if lengths and fmean(lengths) else 1.0


def _costs_of(store: ExperimentStore, runs: Mapping[str, tuple[Run, Experiment]], phase: str) -> dict[str, ArmCost]:
    """Return the cost of each run with a score of this phase, by id."""
    stored = {item.run_id: item.details.get(COST) for item in store.list_evaluations(run_ids=list(runs), phase=phase)}
    return {
        run_id: ArmCost(
            None if run.training_cost is None else cost_from_json(run.training_cost),
            None if (cost := stored[run_id]) is None else cost_from_json(cost),
        )
        for run_id, (run, _) in runs.items()
        if run_id in stored
    }
