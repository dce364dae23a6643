"""The plans that a language model answers: one that makes a claim, and a round of exploration."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from researcher.charter import Charter, ComparedAt, SampleSizeGoal, SearchRules, StudyKind
from researcher.equal_amounts import hold_equal
from researcher.errors import PlannerError
from researcher.history import History
from researcher.plan import Arm, Contrast, Hypothesis, Plan
from researcher.planner.designs import lay_out
from researcher.planner.language_model.answers import (
    FINAL_SCORE,
    ExploreAnswer,
    HypothesisAnswer,
    PlanAnswer,
    Unusable,
    parse_answer,
)
from researcher.planner.language_model.arms import (
    check_names,
    check_operators,
    contents_of,
    find_baseline,
    read_arms,
    set_factors,
)
from researcher.search.hypotheses import RELATIONS, check_confirmed
from researcher.search.rounds import check_round, make_round
from researcher.tree import Expand, Move, Promote

MAX_SEEDS = 10


def parse_plan(text: str, charter: Charter, history: History) -> Plan:
    """Return the plan that an answer makes, with the baseline first.

    Raises Unusable if the answer is invalid or leaves the charter's question.
    """
    answer = parse_answer(text, PlanAnswer)
    seeds, earlier = _read_seeds(answer.seeds, charter), history.arms
    read = [find_baseline(charter), *read_arms(answer.arms, charter, earlier)]
    baseline, *others = hold_equal(read, ComparedAt(charter.compared_at), charter.amount)
    for arm in others:
        if arm.name == baseline.name and contents_of(arm) != contents_of(baseline):
            raise Unusable(f"arm {arm.name!r} is the baseline, and has other settings or another program: leave it out")
    arms = [baseline, *(arm for arm in others if arm.name != baseline.name)]
    if len(arms) < 2:
        raise Unusable("at least one arm besides the baseline is needed")
    check_names(arms, earlier)
    check_operators(arms, charter, earlier, history.tree)
    _check_design(arms, earlier, charter)
    arms = set_factors(arms, earlier, charter.asks)
    known = {*earlier, *(arm.name for arm in arms)}
    hypotheses = _read_hypotheses(answer.hypotheses, known, charter.baseline)
    _check_cost(len(arms) * seeds, charter, history)
    # Later plans use fresh seeds, for the baseline too, so that no score that led to a plan also judges it.
    first = history.next_seed
    return Plan(
        len(history.plans),
        hypotheses,
        tuple(arms),
        tuple(range(first, first + seeds)),
        answer.rationale,
        lessons=tuple(answer.lessons),
    )


def parse_round(text: str, charter: Charter, history: History, moves: Sequence[Move]) -> Plan:
    """Return the round of exploration that an answer makes; a plan without arms ends the exploration.

    Raises Unusable if the answer is invalid, costs more than is left, or leaves out a move.
    """
    answer = parse_answer(text, ExploreAnswer)
    _check_end(answer, moves)
    earlier = history.arms
    if named := [item.name for item in answer.arms if item.name in earlier or item.name == charter.baseline]:
        raise Unusable(f"{', '.join(named)}: an arm that has been planned goes on by promote: leave it out of arms")
    if unnamed := [item.name for item in answer.arms if item.operator is None]:
        raise Unusable(f"arm {', '.join(unnamed)}: operator: say how the arm is derived from its parent")
    if moves and len(answer.arms) < (wanted := sum(isinstance(move, Expand) for move in moves)):
        raise Unusable(f"the policy asks for {wanted} new arms, and the round has {len(answer.arms)}")
    return _plan_round(charter, history, answer, moves)


def plan_promotions(charter: Charter, history: History, moves: Sequence[Promote]) -> Plan:
    """Return the round that only trains arms on, which leaves a planner nothing to choose."""
    answer = ExploreAnswer(rationale="The policy of the study trains these arms on.")
    return _plan_round(charter, history, answer, moves)


def _plan_round(charter: Charter, history: History, answer: ExploreAnswer, moves: Sequence[Move]) -> Plan:
    earlier = history.arms
    read = [find_baseline(charter), *read_arms(answer.arms, charter, earlier)]
    held = hold_equal(read, ComparedAt(charter.compared_at), charter.amount)
    baseline, *new = set_factors(held, earlier, charter.asks)
    # The baseline as it was planned, with what the loop has added to its job.
    known = {baseline.name: baseline, **earlier}
    check_operators(new, charter, known, history.tree)
    check_names(new, known)
    promoted = {move.arm: move.share for move in moves if isinstance(move, Promote)}
    promoted |= {item.arm: item.share for item in answer.promote}
    if unknown := [name for name in promoted if name not in known]:
        raise Unusable(f"promote: there is no arm {', '.join(unknown)}: choose from {', '.join(known)}")
    arms = {**known, **{arm.name: arm for arm in new}}
    hypotheses = _read_hypotheses(answer.hypotheses, arms, charter.baseline)
    shares = {**dict.fromkeys((arm.name for arm in new), (charter.search or SearchRules()).rungs[0]), **promoted}
    if shares and not history.plans:
        shares[baseline.name] = max(shares.values())
    # The baseline comes first, because the other arms refer to it.
    names = sorted(shares, key=lambda name: name != baseline.name)
    plan = make_round(history, [arms[name] for name in names], shares, answer.rationale)
    if answer.done:
        hypotheses = check_named(hypotheses, charter, history)
    plan = replace(plan, hypotheses=hypotheses, lessons=tuple(answer.lessons))
    try:
        return check_round(charter, history, moves, plan)
    except PlannerError as error:
        raise Unusable(str(error)) from error


def read_confirmed(answers: Sequence[HypothesisAnswer], charter: Charter, history: History) -> tuple[Hypothesis, ...]:
    """Return the hypotheses about the arms that an answer names for the confirmation.

    Raises Unusable for an arm that cannot be confirmed, and for more of them than a confirmation has.
    """
    known = {charter.baseline, *history.arms}
    return check_named(_read_hypotheses(answers, known, charter.baseline), charter, history)


def check_named(named: Sequence[Hypothesis], charter: Charter, history: History) -> tuple[Hypothesis, ...]:
    """Return the hypotheses as a confirmation has them. Raises Unusable."""
    try:
        return check_confirmed(charter, history, named)
    except PlannerError as error:
        raise Unusable(f"confirm: {error}") from error


def _read_hypotheses(
    answers: Sequence[HypothesisAnswer], known: Collection[str], baseline: str
) -> tuple[Hypothesis, ...]:
    """Return the hypotheses of an answer about `known` arms. Raises Unusable."""
    return tuple(_read_hypothesis(item, known, baseline) for item in answers)


def _read_seeds(asked: int, charter: Charter) -> int:
    goal = charter.sample_size or SampleSizeGoal()
    if goal.seeds is not None:
        return goal.seeds
    if not charter.rule.min_seeds <= asked <= MAX_SEEDS:
        raise Unusable(f"seeds must be from {charter.rule.min_seeds} to {MAX_SEEDS}, got {asked}")
    return asked


def _check_design(arms: Sequence[Arm], earlier: Mapping[str, Arm], charter: Charter) -> None:
    """Raise Unusable if a comparing study leaves out an arm of its question; a search may do so."""
    if charter.asks.kind is StudyKind.OPTIMIZE:
        return
    found = [dict(arm.factors) for arm in (*earlier.values(), *arms)]
    missing = [arm.name for arm in lay_out(charter.asks, charter.job) if dict(arm.factors) not in found]
    if missing:
        raise Unusable(f"the question asks for {', '.join(missing)} as well, which no arm has")


def _read_hypothesis(item: HypothesisAnswer, known: Collection[str], baseline: str) -> Hypothesis:
    """Return the hypothesis of an answer.

    The judge decides on final scores alone, so a hypothesis about another metric says that it is only described. Raises
    Unusable for unknown arms, or fewer arms than its relation takes.
    """
    # Imported here, because the judge loads a library of statistics.
    from researcher.judge.contrasts import ARMS_OF_RELATION, is_complete

    names, against = tuple(item.arms), tuple(item.against)
    if unknown := [name for name in (*names, *against) if name not in known]:
        raise Unusable(f"hypothesis {item.statement!r}: there is no arm {', '.join(unknown)}")
    if item.metric != FINAL_SCORE:
        told = f"{item.prediction} (It is about {item.metric}, which is described and not judged.)"
        return Hypothesis(item.statement, told, names)
    if item.relation is None:
        return Hypothesis(item.statement, item.prediction, names)
    if not against and item.relation in RELATIONS:
        against = (baseline,)
    contrast = Contrast(item.relation, names, against, item.margin)
    if not is_complete(contrast):
        raise Unusable(f"hypothesis {item.statement!r}: {item.relation.value} takes {ARMS_OF_RELATION[item.relation]}")
    return Hypothesis(item.statement, item.prediction, names, contrast)


def _check_cost(runs: int, charter: Charter, history: History) -> None:
    """Raise Unusable if a later plan exceeds the remaining runs although a smaller plan would fit.

    The design node chooses the number of runs of the first plan.
    """
    if not history.plans or charter.budget.max_runs is None or history.runs_used is None:
        return
    left = charter.budget.max_runs - history.runs_used
    if runs > left >= 2 * charter.rule.min_seeds:
        raise Unusable(f"the plan needs {runs} runs, arms times seeds, and {left} of the budget are left: plan fewer")


def _check_end(answer: ExploreAnswer, moves: Sequence[Move]) -> None:
    """Raise Unusable unless the round either does something or ends the exploration."""
    is_empty = not answer.arms and not answer.promote
    if answer.done and not is_empty:
        raise Unusable("done: true ends the exploration, so a round has either done or arms and promote, not both")
    if answer.done and moves:
        raise Unusable("done: the policy has chosen moves for this round, so carry them out")
    if is_empty and not answer.done and not moves:
        raise Unusable("the round does nothing: give arms or promote, or end the exploration with done")
