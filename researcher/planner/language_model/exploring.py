"""A round of exploration, as a language model answers it: new arms, arms that are trained on, or the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from researcher.charter import Charter, ComparedAt, SearchRules
from researcher.equal_amounts import hold_equal
from researcher.history import History
from researcher.plan import Arm, Plan, Stage
from researcher.planner.language_model.answers import ArmAnswer, ExploreAnswer, Unusable, parse_answer
from researcher.planner.language_model.arms import (
    check_names,
    check_operators,
    find_baseline,
    read_arms,
    set_factors,
)
from researcher.planner.language_model.planning import read_hypotheses
from researcher.planner.language_model.study_state import planned_arms
from researcher.tree import Expand, Move, Promote, SearchTree

TOLERANCE = 1e-9
"""The rounding error of sums of shares."""


def parse_round(text: str, charter: Charter, history: History, moves: Sequence[Move]) -> Plan:
    """Return the round that an answer makes; a plan without arms ends the exploration.

    Raises Unusable if the answer is invalid, costs more than is left, or leaves out a move.
    """
    answer = parse_answer(text, ExploreAnswer)
    _check_end(answer, moves)
    if answer.done:
        return _make_plan(charter, history, answer, [], {})
    earlier = planned_arms(history)
    if named := [item.name for item in answer.arms if item.name in earlier or item.name == charter.baseline]:
        raise Unusable(f"{', '.join(named)}: an arm that has been planned goes on by promote: leave it out of arms")
    if unnamed := [item.name for item in answer.arms if item.operator is None]:
        raise Unusable(f"arm {', '.join(unnamed)}: operator: say how the arm is derived from its parent")
    read = [find_baseline(charter), *read_arms(answer.arms, charter, earlier)]
    baseline, *new = hold_equal(read, ComparedAt(charter.compared_at), charter.amount)
    baseline, *new = set_factors([baseline, *new], earlier, charter.asks)
    # The baseline as it was planned, with what the loop has added to its job.
    known = {baseline.name: baseline, **earlier}
    check_operators(new, charter, known, history.tree)
    check_names(new, known)
    promoted = {item.arm: item.share for item in answer.promote}
    if moves:
        _check_moves(answer.arms, promoted, charter, moves)
        promoted = {move.arm: move.share for move in moves if isinstance(move, Promote)}
    return _plan_round(charter, history, answer, _Round(known, new, promoted, moves))


def plan_promotions(charter: Charter, history: History, moves: Sequence[Promote]) -> Plan:
    """Return the round that only trains arms on, which leaves a planner nothing to choose."""
    answer = ExploreAnswer(rationale="The policy of the study trains these arms on.")
    known = {charter.baseline: find_baseline(charter), **planned_arms(history)}
    promoted = {move.arm: move.share for move in moves}
    return _plan_round(charter, history, answer, _Round(known, [], promoted, moves))


@dataclass(frozen=True, slots=True)
class _Round:
    """The arms of a round: `new` ones, and `promoted` ones of those `known`, with the share that they go on to."""

    known: Mapping[str, Arm]
    new: Sequence[Arm]
    promoted: Mapping[str, float]
    moves: Sequence[Move]


def _plan_round(charter: Charter, history: History, answer: ExploreAnswer, round_: _Round) -> Plan:
    rules = charter.search or SearchRules()
    shares = {**dict.fromkeys((arm.name for arm in round_.new), rules.rungs[0]), **round_.promoted}
    shares |= _share_of_baseline(charter, history, shares, is_chosen=bool(round_.moves))
    if not round_.moves:
        _check_promotions(round_.promoted, rules, history.tree)
        _check_cost(shares, history)
    arms = {**round_.known, **{arm.name: arm for arm in round_.new}}
    if unknown := [name for name in shares if name not in arms]:
        raise Unusable(f"promote: there is no arm {', '.join(unknown)}: choose from {', '.join(round_.known)}")
    # The baseline comes first, because the other arms refer to it.
    names = sorted(shares, key=lambda name: name != charter.baseline)
    rungs = {name: max(1, round(shares[name] * int(arms[name].job["total_steps"]))) for name in names}
    return _make_plan(charter, history, answer, [arms[name] for name in names], rungs)


def _make_plan(
    charter: Charter, history: History, answer: ExploreAnswer, arms: Sequence[Arm], rungs: Mapping[str, int]
) -> Plan:
    names = {*planned_arms(history), *(arm.name for arm in arms)}
    return Plan(
        len(history.plans),
        read_hypotheses(answer.hypotheses, names, charter.baseline),
        tuple(arms),
        _seed_of_exploration(history),
        answer.rationale,
        stage=Stage.EXPLORE,
        rungs=dict(rungs),
        lessons=tuple(answer.lessons),
    )


def _seed_of_exploration(history: History) -> tuple[int, ...]:
    """Return the one seed of all rounds: scores of an arm at two rungs belong to one run, and no claim uses it."""
    if explored := [plan.seeds for plan in history.plans if plan.stage is Stage.EXPLORE]:
        return explored[0]
    return (max((seed for plan in history.plans for seed in plan.seeds), default=-1) + 1,)


def _share_of_baseline(
    charter: Charter, history: History, shares: Mapping[str, float], *, is_chosen: bool
) -> dict[str, float]:
    """Return the share to which the baseline is trained beside the others; empty if it is there already.

    It starts with the first arms, and goes on with those that lead. A policy that `is_chosen` trains it on by itself.
    """
    node = history.tree.find(charter.baseline)
    reached = node.last.share if node is not None and node.last is not None else 0.0
    wanted = max(shares.values(), default=0.0)
    is_new = node is None and not any(arm.is_baseline for plan in history.plans for arm in plan.arms)
    if reached >= wanted or (is_chosen and not is_new) or (node is not None and node.failure):
        return {}
    return {charter.baseline: wanted}


def _check_end(answer: ExploreAnswer, moves: Sequence[Move]) -> None:
    is_empty = not answer.arms and not answer.promote
    if answer.done and not is_empty:
        raise Unusable("done ends the exploration: leave arms and promote out, or done")
    if answer.done and moves:
        raise Unusable("done: the policy has chosen moves for this round, so carry them out")
    if is_empty and not answer.done and not moves:
        raise Unusable("the round does nothing: give arms or promote, or end the exploration with done")


def _check_moves(
    answers: Sequence[ArmAnswer], promoted: Mapping[str, float], charter: Charter, moves: Sequence[Move]
) -> None:
    """Raise Unusable unless there is one arm for each new arm of the policy, and no other."""
    wanted = [move for move in moves if isinstance(move, Expand)]
    left = list(answers)
    for move in wanted:
        found = next((item for item in left if _carries_out(item, move, charter)), None)
        if found is None:
            parents = " and ".join(move.parents) or charter.baseline
            raise Unusable(f"the policy asks for an arm by operator {move.operator} from {parents}, and none is that")
        left.remove(found)
    if left:
        raise Unusable(f"the policy does not ask for {', '.join(item.name for item in left)}: leave it out")
    chosen = {move.arm: move.share for move in moves if isinstance(move, Promote)}
    if other := [arm for arm, share in promoted.items() if chosen.get(arm) != share]:
        raise Unusable(f"promote: the policy chooses what is trained on, and not {', '.join(other)}: leave it out")


def _carries_out(item: ArmAnswer, move: Expand, charter: Charter) -> bool:
    parents = {item.parent or charter.baseline, *([item.second_parent] if item.second_parent else [])}
    return item.operator is move.operator and parents == {*(move.parents or (charter.baseline,))}


def _check_promotions(promoted: Mapping[str, float], rules: SearchRules, tree: SearchTree) -> None:
    """Raise Unusable for an arm that cannot be trained on, or a share that is no rung above the last one."""
    for arm, share in promoted.items():
        node = tree.find(arm)
        if node is None:
            raise Unusable(f"promote: there is no arm {arm}: choose from {', '.join(each.name for each in tree.nodes)}")
        if node.failure:
            raise Unusable(f"promote: {arm} is out ({node.failure[:200]}): choose another")
        reached = node.last.share if node.last is not None else 0.0
        rungs = [rung for rung in rules.rungs if rung > reached]
        if share not in rungs:
            choice = f"choose from {', '.join(f'{rung:g}' for rung in rungs)}" if rungs else "it is fully trained"
            raise Unusable(f"promote: {arm} cannot go on to {share:g}: {choice}")


def _check_cost(shares: Mapping[str, float], history: History) -> None:
    """Raise Unusable if the round costs more full runs than exploration has left."""
    cost = 0.0
    for name, share in shares.items():
        node = history.tree.find(name)
        cost += share - (node.last.share if node is not None and node.last is not None else 0.0)
    if cost > history.runs_left + TOLERANCE:
        raise Unusable(
            f"the round costs {cost:.3g} full runs, the baseline's included, and {history.runs_left:.3g} are left: try "
            "fewer arms, or end the exploration with done"
        )
