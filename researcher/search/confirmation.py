"""The confirmation of the arm that exploration found: a plan made by code, on fresh seeds and fresh tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from experiments_db import Experiment, ExperimentStatus
from researcher.charter import Charter, SampleSizeGoal
from researcher.history import History
from researcher.plan import Arm, ArmProgram, Contrast, Hypothesis, Plan, Relation, Stage
from researcher.record.log import AUTOMATIC
from researcher.search.ablation import Ablation, Subject, list_ablations
from researcher.tree import SearchNode, SearchTree


def find_leader(charter: Charter, history: History) -> SearchNode | None:
    """Return the best explored arm that did better than the baseline and was not confirmed before; None if none did.

    The two are compared at the arm's highest rung, or at the baseline's if that is lower.
    """
    tested = {arm for plan in history.plans for arm in plan.primary}
    baseline = history.tree.find(charter.baseline)
    if baseline is None or baseline.failure:
        return None
    return next(
        (
            node
            for node in history.tree.ranked()
            if node.name not in {charter.baseline, *tested} and _is_better(history.tree, node, baseline)
        ),
        None,
    )


def _is_better(tree: SearchTree, node: SearchNode, baseline: SearchNode) -> bool:
    for score in reversed(node.scores):
        if (other := baseline.at(score.share)) is not None:
            return tree.sign * (score.score - other.score) > 0
    return False


def plan_confirmation(
    charter: Charter, history: History, experiments: Iterable[Experiment], *, most_runs: int | None = None
) -> Plan | None:
    """Return the plan that confirms the leader of the exploration; None if no arm did better than the baseline.

    Its number of seeds is that of a pilot, until the design node chooses it, or that of the confirmation before. With
    less than `most_runs` for all ablations, the last of them are left out.
    """
    leader = find_leader(charter, history)
    if leader is None:
        return None
    claims = [plan for plan in history.plans if plan.stage is Stage.CLAIM]
    arms = history.arms
    winner, baseline = arms[leader.name], arms[charter.baseline]
    ablations = [item.arm for item in _ablations(charter, history, winner.name, experiments)]
    count = _count_seeds(charter, claims)
    if most_runs is not None:
        ablations = ablations[: max(0, most_runs // count - 2)]
        count = max(1, min(count, most_runs // 2))
    first = history.next_seed
    return Plan(
        iteration=len(history.plans),
        hypotheses=(_expect(winner, baseline), *(_expect_part(winner, arm) for arm in ablations)),
        arms=(baseline, winner, *ablations),
        seeds=tuple(range(first, first + count)),
        rationale=f"{winner.name} led the exploration: fresh seeds on fresh tasks confirm it or not.",
        author=AUTOMATIC,
        stage=Stage.CLAIM,
        claim=len(claims),
        primary=(winner.name,),
    )


def ablated_programs(
    charter: Charter, history: History, planned: Plan, experiments: Iterable[Experiment]
) -> Mapping[str, ArmProgram]:
    """Return the programs of the ablations in a confirmation, by the name of the arm."""
    before = [item for item in experiments if item.iteration < planned.iteration]
    earlier = tuple(plan for plan in history.plans if plan.iteration < planned.iteration)
    found = (item for winner in planned.primary for item in _ablations(charter, History(plans=earlier), winner, before))
    return {item.arm.name: item.program for item in found if item.program is not None}


def _ablations(
    charter: Charter, history: History, winner: str, experiments: Iterable[Experiment]
) -> tuple[Ablation, ...]:
    arms = history.arms
    ready = {
        item.name: Subject.of(arms[item.name], item)
        for item in experiments
        if item.name in arms and item.status is ExperimentStatus.READY
    }
    others = {name: subject for name, subject in ready.items() if name not in (winner, charter.baseline)}
    return list_ablations(charter, ready[winner], ready[charter.baseline], others)


def _count_seeds(charter: Charter, claims: list[Plan]) -> int:
    if claims:
        return len(claims[-1].seeds)
    goal = charter.sample_size
    if goal is None:
        return charter.rule.min_seeds
    return goal.seeds or _pilot_of(goal, charter)


def _pilot_of(goal: SampleSizeGoal, charter: Charter) -> int:
    return max(goal.pilot_seeds, charter.rule.min_seeds)


def _expect(winner: Arm, baseline: Arm) -> Hypothesis:
    return Hypothesis(
        statement=f"{winner.name} is better than {baseline.name}.",
        prediction=f"{winner.name} beats {baseline.name} on fresh seeds and held-out tasks that nobody has looked at.",
        arms=(winner.name,),
        contrast=Contrast(Relation.BETTER, (winner.name,), (baseline.name,)),
    )


def _expect_part(winner: Arm, ablation: Arm) -> Hypothesis:
    return Hypothesis(
        statement=f"{winner.name} is better than {ablation.name}, which lacks a part of it.",
        prediction=f"{winner.name} beats {ablation.name} on held-out episodes.",
        arms=(winner.name, ablation.name),
        contrast=Contrast(Relation.BETTER, (winner.name,), (ablation.name,)),
    )
