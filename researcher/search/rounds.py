"""The check of a round of exploration, for every planner; it adds the baseline where other arms need it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from researcher.charter import Charter, SearchRules
from researcher.errors import PlannerError
from researcher.history import History
from researcher.plan import Arm, Plan, Stage
from researcher.record.runs import shares_at, steps_at, total_steps
from researcher.tree import Expand, Move, Promote, SearchNode, SearchTree

EXPLORING_SEED = 0
"""The one seed of all exploring runs. No other run has it, so no claim rests on the runs that chose its arms."""
TOLERANCE = 1e-6
"""The rounding error of sums of parts of runs."""


def begin_tree(tree: SearchTree, charter: Charter) -> SearchTree:
    """Return the tree with the baseline as its root, which the first round adds."""
    if tree.nodes:
        return tree
    return replace(tree, nodes=(SearchNode(charter.baseline),))


def make_round(history: History, arms: Sequence[Arm], shares: Mapping[str, float], rationale: str) -> Plan:
    """Return the round that trains each arm up to its share of the full training."""
    return Plan(
        iteration=len(history.plans),
        hypotheses=(),
        arms=tuple(arms),
        seeds=(EXPLORING_SEED,),
        rationale=rationale,
        stage=Stage.EXPLORE,
        rungs={arm.name: steps_at(shares[arm.name], total_steps(arm.job)) for arm in arms},
    )


def check_round(charter: Charter, history: History, moves: Sequence[Move], plan: Plan) -> Plan:
    """Return the round as it is carried out: known arms as first planned, the baseline trained as far as the others.

    A plan without arms is returned as it is. Raises PlannerError, which names the arm or the move that is wrong.
    """
    rules = charter.search
    if rules is None:
        raise PlannerError("a study without rules of a search explores nothing")
    known = history.arms
    arms = tuple(known.get(arm.name, arm) for arm in plan.arms)
    plan = replace(plan, arms=arms, stage=Stage.EXPLORE, seeds=(EXPLORING_SEED,), primary=(), pools_runs=False)
    if not arms:
        return plan
    names = [arm.name for arm in arms]
    if len(set(names)) < len(names) or plan.rungs.keys() != set(names):
        raise PlannerError("a round names every arm once and gives each of them a rung")
    if not history.plans and not any(arm.is_baseline and arm.name == charter.baseline for arm in arms):
        raise PlannerError(f"the first round has the baseline, {charter.baseline}, too")
    for arm in arms:
        _check_rung(rules, history.tree, arm, plan.rungs[arm.name], is_new=arm.name not in known)
        if arm.name not in known:
            _check_parents(charter, {*known, *names[: names.index(arm.name)]}, arm)
    whole = _with_baseline(charter, rules, history.tree, known, plan)
    if moves:
        _check_moves(charter, rules, moves, plan, known)
    # A policy counts the moves alone: what the baseline needs beside them is no cost of its round.
    paid = plan if moves else whole
    cost = sum(_cost(rules, history.tree, arm, paid.rungs[arm.name]) for arm in paid.arms)
    if cost > history.runs_left + TOLERANCE:
        raise PlannerError(f"the round costs {cost:.3g} full runs, and exploration has {history.runs_left:.3g} left")
    return whole


def _check_rung(rules: SearchRules, tree: SearchTree, arm: Arm, step: int, *, is_new: bool) -> None:
    total = total_steps(arm.job)
    legal = {steps_at(share, total): share for share in rules.rungs}
    node = tree.find(arm.name)
    if step not in legal:
        known = ", ".join(f"{share:g} (step {end})" for end, share in legal.items())
        raise PlannerError(f"{arm.name} cannot end at step {step}: its rungs are {known}")
    if is_new and not arm.is_baseline and step != steps_at(rules.rungs[0], total):
        raise PlannerError(
            f"{arm.name} is new, so its training ends at the first rung: {steps_at(rules.rungs[0], total)}"
        )
    if node is not None and node.failure:
        raise PlannerError(f"{arm.name} is out of the search: {node.failure}")
    if node is not None and node.last is not None and legal[step] <= node.last.share:
        raise PlannerError(f"{arm.name} has come to step {step} already")


def _check_parents(charter: Charter, known: Collection[str], arm: Arm) -> None:
    """Check that a new arm has an operator, and parents among `known` arms or the baseline."""
    if arm.is_baseline:
        return
    if arm.operator is None or arm.parent is None:
        raise PlannerError(f"{arm.name} needs a parent and an operator")
    for parent in (arm.parent, arm.second_parent):
        if parent is not None and parent not in known and parent != charter.baseline:
            raise PlannerError(f"{arm.name}: there is no arm {parent}")


def _check_moves(
    charter: Charter, rules: SearchRules, moves: Sequence[Move], plan: Plan, known: Mapping[str, Arm]
) -> None:
    """Check that every promotion is carried out, and that each new arm is one that a move adds.

    A move that adds an arm may stay open, because a space may be used up.
    """
    promoted = {move.arm: move.share for move in moves if isinstance(move, Promote)}
    room = [move for move in moves if isinstance(move, Expand)]
    for arm in plan.arms:
        if arm.name in promoted:
            wanted = steps_at(promoted.pop(arm.name), total_steps(arm.job))
            if plan.rungs[arm.name] != wanted:
                raise PlannerError(f"{arm.name} is to be trained to step {wanted}, not to {plan.rungs[arm.name]}")
        elif arm.name in known and arm.name != charter.baseline:
            raise PlannerError(f"no move trains {arm.name} on")
        elif not arm.is_baseline:
            fitting = next((move for move in room if _is_by(charter, arm, move)), None)
            if fitting is None:
                raise PlannerError(f"no move adds an arm like {arm.name}: {arm.operator} of {arm.parent}")
            room.remove(fitting)
    if promoted:
        raise PlannerError(f"the round leaves out {', '.join(promoted)}, which a move trains on")


def _is_by(charter: Charter, arm: Arm, move: Expand) -> bool:
    parents = {parent for parent in (arm.parent, arm.second_parent) if parent is not None}
    return arm.operator is move.operator and parents == {*(move.parents or (charter.baseline,))}


def _cost(rules: SearchRules, tree: SearchTree, arm: Arm, step: int) -> float:
    """Return the cost of training an arm from its last rung up to a step, in full runs.

    The cost is a difference of shares, as policies count it, whatever whole numbers of steps the rungs have.
    """
    node = tree.find(arm.name)
    reached = node.last.share if node is not None and node.last is not None else 0.0
    return min(share for share in _shares_of(rules, arm, step) if share > reached) - reached


def _with_baseline(
    charter: Charter, rules: SearchRules, tree: SearchTree, known: Mapping[str, Arm], plan: Plan
) -> Plan:
    """Return the round with the baseline trained as far as the arm that goes furthest, so that they can be compared."""
    furthest = max(share for arm in plan.arms for share in _shares_of(rules, arm, plan.rungs[arm.name]))
    baseline, node = known.get(charter.baseline), tree.find(charter.baseline)
    if baseline is None or node is None or node.failure or charter.baseline in plan.rungs:
        return plan
    if node.last is not None and node.last.share >= furthest:
        return plan
    rungs = {**plan.rungs, baseline.name: steps_at(furthest, total_steps(baseline.job))}
    return replace(plan, arms=(baseline, *plan.arms), rungs=rungs)


def _shares_of(rules: SearchRules, arm: Arm, step: int) -> tuple[float, ...]:
    return shares_at(rules.rungs, total_steps(arm.job), step)
