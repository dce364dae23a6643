"""The learning speed of each arm, from held-out scores in mid-training.

Place in the flow: facts.py gathers the curves of the runs, and the templates and figures show these rows. Nothing is
judged here: if a study compares arms by the area, its findings have the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from researcher.judge.learning_curves import ScoredStep, area_under, steps_to

LEVEL_SHARE = 0.9
"""The level to reach, as a share of the way from the baseline's base score to its final score."""


@dataclass(frozen=True, slots=True)
class ArmSpeed:
    """The learning speed of one arm, over the runs that were scored in mid-training.

    `area` is the mean score over all steps. `steps` is the mean number of steps to the level, over the `reached` of
    `runs` runs that reach it; None if none does.
    """

    arm: str
    area: float
    steps: float | None
    reached: int
    runs: int


@dataclass(frozen=True, slots=True)
class LearningSpeed:
    """The learning speed of all arms.

    `level` is the score that the arms' `steps` lead to.
    """

    level: float
    arms: tuple[ArmSpeed, ...]


def compare_speed(curves: Mapping[str, Sequence[Sequence[ScoredStep]]], baseline: str) -> LearningSpeed | None:
    """Return the learning speed of all arms; None if the baseline has no score in mid-training.

    `curves` has the runs of each arm.
    """
    scored = {arm: [curve for curve in runs if len(curve) > 2] for arm, runs in curves.items()}
    if not scored.get(baseline):
        return None
    first = fmean(curve[0].mean for curve in scored[baseline])
    last = fmean(curve[-1].mean for curve in scored[baseline])
    level = first + LEVEL_SHARE * (last - first)
    return LearningSpeed(level, tuple(_speed(arm, runs, level) for arm, runs in scored.items() if runs))


def _speed(arm: str, runs: Sequence[Sequence[ScoredStep]], level: float) -> ArmSpeed:
    areas = [area.value for curve in runs if (area := area_under(curve)) is not None]
    reached = [steps.value for curve in runs if (steps := steps_to(curve, level)) is not None]
    return ArmSpeed(arm, fmean(areas), fmean(reached) if reached else None, len(reached), len(runs))
