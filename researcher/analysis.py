"""The result of one iteration: the scores of arms, their comparisons and the judged contrasts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import BeforeValidator

from experiments_db import RULED_OUT, Outcome, Verdict
from researcher.plan import Contrast, Stage
from researcher.tree import SearchNode

Number = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]
"""A number that may be NaN, which JSON has as null."""


@dataclass(frozen=True, slots=True)
class GainPart:
    """One part of the difference between an arm and the baseline.

    A part has a value, an interval and a two-sided p value. All are NaN if too few runs have a base score. `p` is not
    corrected for the family.
    """

    value: Number = math.nan
    ci_low: Number = math.nan
    ci_high: Number = math.nan
    p: Number = math.nan


@dataclass(frozen=True, slots=True)
class ArmSummary:
    """The scores of one arm over all its runs.

    `scores` maps each seed to the number that its run is judged by. The interval is Student's t over seeds, cut to the
    range of the metric. `half_width` is half the width of the interval before the cut. `failures` maps seeds to how the
    run failed.
    """

    arm: str
    scores: Mapping[int, float]
    base_scores: Mapping[int, float]
    mean: Number
    ci_low: Number
    ci_high: Number
    run_ids: tuple[str, ...]
    failures: Mapping[int, str] = field(default_factory=dict[int, str])
    half_width: Number = math.nan


@dataclass(frozen=True, slots=True)
class Comparison:
    """The difference of an arm from the baseline (arm minus baseline), as the plan of `iteration` judged it.

    `p` is two-sided. `p_adjusted` is corrected over the plan's comparisons and for the plan's share of alpha, so it is
    compared with alpha itself. `basis` is `seeds`, `evaluation` or `none`. It is `evaluation` if an arm has one run, so
    that only evaluation noise is known. `correlation` is measured between runs of the same seed; NaN if that is
    impossible. `failures` counts failed runs of the arm, and `baseline_failures` those of the baseline. `missing` and
    `baseline_missing` give the reason for each planned seed without a score. `retries` gives the reasons for repeated
    trainings.

    `agent_gain` is the difference of the base scores: the effect of the arm's agent on the base weights.
    `training_gain` is the difference in what training added. `weights_gain` is the difference of the trained weights
    where the baseline's agent plays both; NaN unless the arm has an agent of its own. `unseen_failures` is an upper
    bound on the share of the arm's runs that fail or collapse. `note` explains the verdict and its limits.
    """

    arm: str
    baseline: str
    difference: Number
    ci_low: Number
    ci_high: Number
    p: Number
    p_adjusted: Number
    seeds: tuple[int, ...]
    verdict: Verdict
    run_ids: tuple[str, ...]
    iteration: int = 0
    basis: str = "seeds"
    correlation: Number = math.nan
    failures: int = 0
    baseline_failures: int = 0
    note: str = ""
    missing: Mapping[int, str] = field(default_factory=dict[int, str])
    baseline_missing: Mapping[int, str] = field(default_factory=dict[int, str])
    retries: Mapping[int, str] = field(default_factory=dict[int, str])
    agent_gain: GainPart = GainPart()
    training_gain: GainPart = GainPart()
    weights_gain: GainPart = GainPart()
    unseen_failures: Number = math.nan

    @property
    def is_open(self) -> bool:
        """True if more runs may decide about the arm, which is not so once it is out."""
        return self.verdict is Verdict.INCONCLUSIVE and not self.note.startswith(RULED_OUT)


@dataclass(frozen=True, slots=True)
class JudgedContrast:
    """A hypothesis' contrast with its outcome.

    `key` is the key of the hypothesis in the database. `reason` is one sentence with the numbers. `winner` is the arm
    that a `best` contrast found.
    """

    key: str
    contrast: Contrast
    outcome: Outcome
    reason: str
    winner: str = ""


@dataclass(frozen=True, slots=True)
class Analysis:
    """The result of the analysis of one plan.

    `ranking` lists the arms, best first. `failed` maps each arm to the reasons for its runs without a score.
    `comparisons` contains the latest comparison of each arm. `contrasts` contains those of the analyzed plan.

    `stage` is that of the plan. After an exploring plan, `arms` and `ranking` are of the scores at the highest rungs,
    and `explored` has the scores at all rungs.
    """

    arms: tuple[ArmSummary, ...]
    comparisons: tuple[Comparison, ...]
    ranking: tuple[str, ...]
    failed: Mapping[str, tuple[str, ...]]
    contrasts: tuple[JudgedContrast, ...] = ()
    stage: Stage = Stage.CLAIM
    explored: tuple[SearchNode, ...] = ()
