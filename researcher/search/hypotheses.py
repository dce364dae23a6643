"""The hypotheses that a confirmation is about: those that a planner names, and the usual ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from experiments_db import IN_MEDIAN_PAIR
from researcher.charter import Charter, SampleSizeGoal
from researcher.errors import PlannerError
from researcher.history import History
from researcher.plan import Contrast, Hypothesis, Relation
from researcher.tree import SearchNode, SearchTree

MOST_CONFIRMED = 4
"""The most arms of one confirmation, without the baseline and the ablations."""
RELATIONS = (Relation.BETTER, Relation.WORSE, Relation.NO_BETTER, Relation.EQUIVALENT)
"""What a hypothesis may claim about an arm and the baseline."""


def check_confirmed(charter: Charter, history: History, named: Sequence[Hypothesis]) -> tuple[Hypothesis, ...]:
    """Return the hypotheses about arms that a planner names for confirmation, those of better arms first.

    Raises PlannerError, which names the arm and what is wrong.
    """
    if len(named) > MOST_CONFIRMED:
        raise PlannerError(f"{len(named)} arms are named, and a confirmation has {MOST_CONFIRMED} at most: name fewer")
    known = {node.name: node for node in _confirmable(charter, history)}
    seen: set[str] = set()
    for item in named:
        if len(item.arms) != 1 or item.contrast is None or item.contrast.relation not in RELATIONS:
            raise PlannerError(
                f"hypothesis {item.statement!r}: a confirmation takes one arm and one of the relations "
                f"{', '.join(RELATIONS)}"
            )
        (arm,) = item.arms
        if (item.contrast.arms, item.contrast.against) != ((arm,), (charter.baseline,)):
            raise PlannerError(f"hypothesis {item.statement!r}: hold {arm} against {charter.baseline} alone")
        if arm not in known:
            raise PlannerError(
                f"{arm} cannot be confirmed: choose among explored arms that have a score, are not out and were not "
                f"confirmed before: {', '.join(known) or 'there are none'}"
            )
        if arm in seen:
            raise PlannerError(f"{arm} is named twice: give it one hypothesis")
        seen.add(arm)
    return _better_first(named)


def usual_hypotheses(charter: Charter, history: History, *, of_each_kind: bool) -> tuple[Hypothesis, ...]:
    """Return the hypothesis that the leader of the exploration is better; none if no arm did better than the baseline.

    With `of_each_kind`, the best arm that differs in one part alone has a hypothesis too, if the scope has several
    parts. It says that the arm is better if the arm led the baseline, else that it gains less than what is looked for.
    """
    leader = find_leader(charter, history)
    if leader is None:
        return ()
    found = [leader, *(_best_of_kinds(charter, history) if of_each_kind else ())]
    nodes = {node.name: node for node in found}.values()
    return _better_first([_expect(charter, history.tree, node) for node in nodes])[:MOST_CONFIRMED]


def find_leader(charter: Charter, history: History) -> SearchNode | None:
    """Return the best explored arm that did better than the baseline and was not confirmed before; None if none did.

    The two are compared at the arm's highest rung, or at the baseline's if that is lower.
    """
    nodes = _confirmable(charter, history)
    return next((node for node in nodes if _is_ahead(charter, history.tree, node)), None)


def _best_of_kinds(charter: Charter, history: History) -> Iterator[SearchNode]:
    parts = charter.asks.scope.parts
    for part in parts if len(parts) > 1 else ():
        yield from [node for node in _confirmable(charter, history) if node.parts == (part,)][:1]


def _confirmable(charter: Charter, history: History) -> list[SearchNode]:
    """Return the arms that may be confirmed, best first; none if the baseline is out."""
    baseline = history.tree.find(charter.baseline)
    if baseline is None or baseline.failure:
        return []
    out = {charter.baseline, *(arm for plan in history.plans for arm in plan.primary)}
    return [node for node in history.tree.ranked() if node.name not in out]


def _is_ahead(charter: Charter, tree: SearchTree, node: SearchNode) -> bool:
    baseline = tree.find(charter.baseline)
    for score in reversed(node.scores):
        if baseline is not None and (other := baseline.at(score.share)) is not None:
            return tree.sign * (score.score - other.score) > 0
    return False


def _better_first(hypotheses: Sequence[Hypothesis]) -> tuple[Hypothesis, ...]:
    """Return the hypotheses, those that an arm is better before the others: the first one's arm has the ablations."""
    return tuple(sorted(hypotheses, key=lambda item: not is_of_better(item)))


def is_of_better(item: Hypothesis) -> bool:
    """Return whether a hypothesis claims that an arm is better."""
    return item.contrast is not None and item.contrast.relation is Relation.BETTER


def _expect(charter: Charter, tree: SearchTree, node: SearchNode) -> Hypothesis:
    arm, baseline = node.name, charter.baseline
    if _is_ahead(charter, tree, node):
        return Hypothesis(
            statement=f"{arm} is better than {baseline} {IN_MEDIAN_PAIR}.",
            prediction=f"{arm} beats {baseline} on fresh seeds and held-out tasks that nobody has looked at.",
            arms=(arm,),
            contrast=Contrast(Relation.BETTER, (arm,), (baseline,)),
        )
    margin = (charter.sample_size or SampleSizeGoal()).target_effect
    return Hypothesis(
        statement=f"{arm} gains less than {margin:g} over {baseline} {IN_MEDIAN_PAIR}.",
        prediction=f"The interval of the gain of {arm} on fresh seeds leaves out {margin:g}.",
        arms=(arm,),
        contrast=Contrast(Relation.NO_BETTER, (arm,), (baseline,), margin),
    )
