"""The confirmation of the arm that exploration found: the arm, and whether its gain needs each of its parts.

Place in the flow: facts.py gathers it for an exploring study from the newest plan with a primary arm. The outcomes are
those of the judge's contrasts; the differences are of the same runs. This module decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from experiments_db import Operator, Outcome
from researcher.analysis import Analysis, Comparison
from researcher.charter import Charter
from researcher.judge import Runs, compare_on_test
from researcher.plan import Arm, Plan, Relation, Stage
from researcher.record.scores import choose_for_plan


@dataclass(frozen=True, slots=True)
class JudgedAblation:
    """The winner without one of its parts.

    `part` says what was taken away. `difference` is the winner less this arm, over the runs of the confirmation; its
    interval is not corrected. It is None without runs. `outcome` is that of the hypothesis that the winner is better;
    None if it was not judged.
    """

    name: str
    part: str
    difference: Comparison | None = None
    outcome: Outcome | None = None


@dataclass(frozen=True, slots=True)
class ConfirmedSearch:
    """The arm that a plan confirms, with its ablations; `iteration` is that of the plan."""

    winner: str
    iteration: int
    ablations: tuple[JudgedAblation, ...] = ()


def gather_confirmation(
    charter: Charter, plans: Sequence[Plan], analyses: Mapping[int, Analysis], scores: Mapping[str, Runs]
) -> ConfirmedSearch | None:
    """Return the newest confirmation; None before the first. `analyses` are by iteration."""
    plan = next((plan for plan in reversed(plans) if plan.stage is Stage.CLAIM and plan.primary), None)
    if plan is None:
        return None
    winner = plan.primary[0]
    runs = choose_for_plan(plan, [each for each in plans if each.iteration < plan.iteration], scores)
    ablated = [arm for arm in plan.arms if arm.operator is Operator.ABLATE and arm.name != winner]
    analysis = analyses.get(plan.iteration)
    return ConfirmedSearch(
        winner,
        plan.iteration,
        tuple(_ablation(charter, winner, arm, runs, analysis) for arm in ablated),
    )


def _ablation(
    charter: Charter, winner: str, arm: Arm, runs: Mapping[str, Runs], analysis: Analysis | None
) -> JudgedAblation:
    has_runs = bool(runs.get(winner)) and bool(runs.get(arm.name))
    judged = () if analysis is None else analysis.contrasts
    outcome = next(
        (
            item.outcome
            for item in judged
            if item.contrast.relation is Relation.BETTER
            and (item.contrast.arms, item.contrast.against) == ((winner,), (arm.name,))
        ),
        None,
    )
    # The judge's own comparison of two arms, with the arm without the part in the place of the baseline.
    against = replace(charter, baseline=arm.name)
    return JudgedAblation(
        arm.name,
        arm.rationale,
        compare_on_test(against, winner, {name: runs[name] for name in (winner, arm.name)}) if has_runs else None,
        outcome,
    )
