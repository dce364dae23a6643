"""A round of exploration as rules carry it out: a proposer gives the levels of new arms, and known arms go on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from researcher.charter import Charter, SearchRules
from researcher.errors import PlannerError
from researcher.history import History
from researcher.plan import Arm, Plan, Stage
from researcher.record.runs import steps_at, total_steps
from researcher.search.description import EXPLORING_SEED
from researcher.search.proposers import PROPOSERS
from researcher.search.rounds import list_explored_arms
from researcher.tree import Expand, Move, Promote

LayOut = Callable[[Mapping[str, str]], Arm]
"""The arm with the levels that are given by factor."""


def plan_round(
    charter: Charter,
    rules: SearchRules,
    history: History,
    moves: Sequence[Move],
    baseline: Arm,
    lay_out: LayOut,
) -> Plan:
    """Return the round that carries out the moves; the first one has the baseline too.

    A move that adds an arm stays open if the space is used up. Raises PlannerError if the charter's baseline is not
    `baseline`.
    """
    known = {baseline.name: baseline, **list_explored_arms(history)}
    if charter.baseline not in known:
        raise PlannerError(f"the charter's baseline, {charter.baseline}, is not that of the rules, {baseline.name}")
    arms: dict[str, Arm] = {} if history.plans else {baseline.name: baseline}
    added = _add(charter, rules, history, moves, lay_out)
    arms |= {arm.name: arm for arm in added}
    shares = dict.fromkeys(arms, rules.rungs[0])
    for move in moves:
        if isinstance(move, Promote):
            arms[move.arm], shares[move.arm] = known[move.arm], move.share
    return Plan(
        iteration=len(history.plans),
        hypotheses=(),
        arms=tuple(arms.values()),
        seeds=(EXPLORING_SEED,),
        rationale=_describe(moves, added),
        stage=Stage.EXPLORE,
        rungs={name: steps_at(shares[name], total_steps(arm.job)) for name, arm in arms.items()},
    )


def _add(
    charter: Charter,
    rules: SearchRules,
    history: History,
    moves: Sequence[Move],
    lay_out: LayOut,
) -> list[Arm]:
    """Return the arms that the moves add, as far as the space has levels for them."""
    taken: list[Mapping[str, str]] = []
    added: list[Arm] = []
    for move in moves:
        if not isinstance(move, Expand):
            continue
        levels = PROPOSERS[rules.proposer](history.tree, charter.asks.factors, move, taken)
        if levels is None:
            continue
        taken.append(levels)
        parent, second = (*move.parents, None, None)[:2]
        added.append(
            replace(
                lay_out(levels),
                parent=parent or charter.baseline,
                second_parent=second,
                operator=move.operator,
                rationale=f"{move.operator} by {rules.proposer}",
            )
        )
    return added


def _describe(moves: Sequence[Move], added: Sequence[Arm]) -> str:
    """Return the round in one sentence."""
    trained = [f"{move.arm} to {move.share:.0%}" for move in moves if isinstance(move, Promote)]
    parts = [f"new: {', '.join(arm.name for arm in added)}"] if added else []
    return "; ".join([*parts, *([f"trained on: {', '.join(trained)}"] if trained else [])]) or "the baseline alone"
