"""The mean curve of an arm over its seeds, of which some ended early; and whether arms train on the same reward.

Place in the flow: facts.py asks whose curves are shown, figures.py draws the means. A run that ended early counts on
with its last value (last observation carried forward): its weights stay as they are, and a mean over those alone that
are left would rise by losing the worst. This module draws nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from experiments_db import Experiment, RunStatus
from researcher.execution.runs import OWN_DOING

if TYPE_CHECKING:
    from researcher.report.numbers.facts import Curve, RunFacts


@dataclass(frozen=True, slots=True)
class MeanCurve:
    """Mean, lowest and highest value by step, over `runs` runs at the end. From `carried_from` on at least one of them
    has ended and counts with its last value; None if none has. `early` are the last points of those that ended early.
    """

    steps: tuple[int, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    runs: int
    carried_from: int | None
    early: tuple[tuple[int, float], ...]


def mean_curve(curves: Mapping[str, Curve], early: Collection[str], total_steps: int) -> MeanCurve | None:
    """`curves` and those that ended `early` by run; one that did is carried on to the arm's `total_steps`. None without
    a point."""
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
    """The runs whose curves stand for an arm's seeds: those that count, and where a seed has none of these, the last
    one that failed by its own doing. A failure of the system says nothing of the arm."""
    by_seed: dict[int, RunFacts] = {}
    for item in runs:
        kept = by_seed.get(item.run.seed)
        if item.counts or ((kept is None or not kept.counts) and _is_own_failure(item)):
            by_seed[item.run.seed] = item
    return [item.run.id for item in by_seed.values()]


def is_same_reward(arms: Sequence[Experiment]) -> bool:
    """Whether training rewards of these arms can be compared: they have the same environment to train on, and either no
    program has a reward of its own or all programs are the same."""
    if len({arm.train_environment for arm in arms}) > 1:
        return False
    codes = {arm.program_code for arm in arms}
    return len(codes) == 1 or not any(_has_reward(code) for code in codes)


def _is_own_failure(item: RunFacts) -> bool:
    return item.run.status is RunStatus.FAILED and (item.run.diagnosis or {}).get("kind") in OWN_DOING


def _has_reward(code: str) -> bool:
    """Whether a program gives `reward` a meaning; one that cannot be read may."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError):
        return True
    for node in ast.walk(tree):
        named = getattr(node, "asname", None) or getattr(node, "name", None) or getattr(node, "id", None)
        if named in ("reward", "*"):
            return True
    return False
