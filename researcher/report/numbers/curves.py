"""The curves of runs: their mean over seeds, and what training took."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from experiments_db import TRAINING_SECONDS, Experiment, ExperimentStore, RunStatus
from prompts import load
from researcher.program_parts import find_differing_parts
from researcher.record.runs import OWN_DOING
from researcher.scope import ArmPart

if TYPE_CHECKING:
    from researcher.report.numbers.facts import Curve, RunFacts

EPISODES = "batch/episodes"
TOKENS = ("rollout/trained_tokens", "actor/trained_tokens")
"""The metrics of a step: the episodes of its batch, and the tokens that the model wrote in them.

The engine `fake` has another name for the tokens."""


@dataclass(frozen=True, slots=True)
class MeanCurve:
    """The mean, lowest and highest value by step, over `runs` runs.

    From `carried_from` on, at least one of them has ended and counts with its last value; None if none has. `early` are
    the last points of the runs that ended early.
    """

    steps: tuple[int, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    runs: int
    carried_from: int | None
    early: tuple[tuple[int, float], ...]


def mean_curve(curves: Mapping[str, Curve], early: Collection[str], total_steps: int) -> MeanCurve | None:
    """Return the mean of the curves, or None if they have no point.

    `curves` maps each run to its curve. Runs in `early` ended early; their last value counts up to the arm's
    `total_steps`.
    """
    known = {run: dict(curve) for run, curve in curves.items() if curve}
    if not known:
        return None
    ends = {run: max(curve) for run, curve in known.items()}
    cut = [run for run in known if run in early]
    steps = sorted({step for curve in known.values() for step in curve} | ({total_steps} if cut else set()))
    rows: list[list[float]] = []
    latest: dict[str, float] = {}
    for step in steps:
        latest |= {run: curve[step] for run, curve in known.items() if step in curve}
        rows.append(list(latest.values()))
    first_end = min(ends.values())
    return MeanCurve(
        tuple(steps),
        tuple(fmean(row) for row in rows),
        tuple(min(row) for row in rows),
        tuple(max(row) for row in rows),
        len(known),
        first_end if first_end < steps[-1] else None,
        tuple((ends[run], known[run][ends[run]]) for run in cut),
    )


def with_curves(runs: Iterable[RunFacts]) -> list[str]:
    """Return the ids of the runs whose curves represent an arm's seeds.

    These are the runs that count. A seed without one is represented by its last run that failed by its own doing. A
    failure of the system reveals nothing about the arm.
    """
    by_seed: dict[int, RunFacts] = {}
    for item in runs:
        kept = by_seed.get(item.run.seed)
        if item.counts or ((kept is None or not kept.counts) and _is_own_failure(item)):
            by_seed[item.run.seed] = item
    return [item.run.id for item in by_seed.values()]


def is_same_reward(arms: Sequence[Experiment]) -> bool:
    """Return whether the training rewards of these arms can be compared.

    The arms must train on the same environment. Besides, either no program has a reward of its own, or all programs are
    the same.
    """
    if len({arm.train_environment for arm in arms}) > 1:
        return False
    codes = {arm.program_code for arm in arms}
    return len(codes) == 1 or not any(_has_reward(code) for code in codes)


def _is_own_failure(item: RunFacts) -> bool:
    return item.run.status is RunStatus.FAILED and (item.run.diagnosis or {}).get("kind") in OWN_DOING


def _has_reward(code: str) -> bool:
    """Return whether a program may have a reward of its own; so may one that cannot be parsed."""
    try:
        return ArmPart.REWARD in find_differing_parts(code, load("program"))
    except (SyntaxError, ValueError):
        return True


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
