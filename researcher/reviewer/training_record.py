"""A look at the recorded trainings of an arm: whether its reward rose while its grades did not.

Place in the flow: the rules reviewer asks here about arms with a reward of their own. Curves and held-out scores come
from the database.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

from experiments_db import Experiment, ExperimentStore, Run
from researcher.charter import Charter
from researcher.history import Objection, ObjectionKind
from researcher.phases import BASE, FINAL
from swarm.guard import REWARD, SUCCESS

LEAST_STEPS = 8
"""A training with fewer steps shows no trend."""
RISE = 0.25
"""A reward rises clearly if it grows by this part of its largest value in the training."""
SAME_SUCCESS = 0.05
NOISE = 2.0
"""Standard errors within which two held-out scores are the same."""


def look_at_trainings(store: ExperimentStore, charter: Charter, experiment: Experiment) -> Iterator[Objection]:
    """Yield an objection if in most trainings of an arm the reward rose, and neither grades nor held-out scores did."""
    seen = [
        found
        for run in store.list_runs(experiment_id=experiment.id)
        if (found := _describe(store, charter, run)) is not None
    ]
    gamed = [sentence for sentence in seen if sentence]
    if gamed and 2 * len(gamed) >= len(seen):
        yield Objection(ObjectionKind.GAMED_REWARD, gamed[0], is_grave=True)


def _describe(store: ExperimentStore, charter: Charter, run: Run) -> str | None:
    """Return how the reward of a run was gamed; empty if it was not, and None if the run shows nothing."""
    curves: dict[str, list[float]] = {REWARD: [], SUCCESS: []}
    for point in store.list_metrics([run.id], names=list(curves)):
        if point.value is not None:
            curves[point.name].append(point.value)
    rewards, solved = curves[REWARD], curves[SUCCESS]
    if min(len(rewards), len(solved)) < LEAST_STEPS:
        return None
    was, now = _ends(rewards)
    before, after = _ends(solved)
    scale = max(abs(value) for value in rewards)
    gain = _held_out_gain(store, charter, run)
    if now - was < RISE * scale or after - before > SAME_SUCCESS or (gain is not None and gain > 0):
        return ""
    return (
        f"In training its reward rose from {was:.3g} to {now:.3g}, and the share of solved tasks went from "
        f"{before:.2f} to {after:.2f}; the held-out score did not rise."
    )


def _ends(values: list[float]) -> tuple[float, float]:
    """Return the means of the first and of the last quarter of a curve."""
    quarter = max(len(values) // 4, 1)
    return fmean(values[:quarter]), fmean(values[-quarter:])


def _held_out_gain(store: ExperimentStore, charter: Charter, run: Run) -> float | None:
    """Return by how much training raised the held-out score; 0 within noise, and None if it was not measured."""
    base, final = (store.find_evaluation(run.id, phase, charter.search_split) for phase in (BASE, FINAL))
    if base is None or final is None:
        return None
    gain = final.mean - base.mean
    noise = NOISE * (base.stderr**2 + final.stderr**2) ** 0.5
    return 0.0 if abs(gain) <= noise else gain
