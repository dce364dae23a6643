"""The plan that makes a claim, as a language model answers it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from researcher.charter import Charter, ComparedAt, SampleSizeGoal, StudyKind
from researcher.equal_amounts import hold_equal
from researcher.history import History
from researcher.judge.contrasts import ARMS_OF_RELATION, is_complete
from researcher.plan import Arm, Contrast, Hypothesis, Plan, Relation
from researcher.planner.designs import lay_out
from researcher.planner.language_model.answers import (
    FINAL_SCORE,
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
from researcher.planner.language_model.study_state import planned_arms

MAX_SEEDS = 10


def parse_plan(text: str, charter: Charter, history: History) -> Plan:
    """Return the plan that an answer makes, with the baseline first.

    Raises Unusable if the answer is invalid or leaves the charter's question.
    """
    answer = parse_answer(text, PlanAnswer)
    seeds = _read_seeds(answer.seeds, charter)
    earlier = planned_arms(history)
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
    hypotheses = read_hypotheses(answer.hypotheses, known, charter.baseline)
    _check_cost(len(arms) * seeds, charter, history)
    # Later plans use fresh seeds, for the baseline too, so that no score that led to a plan also judges it.
    first = max((seed for plan in history.plans for seed in plan.seeds), default=-1) + 1
    return Plan(
        len(history.plans),
        hypotheses,
        tuple(arms),
        tuple(range(first, first + seeds)),
        answer.rationale,
        lessons=tuple(answer.lessons),
    )


def read_hypotheses(
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
    names = tuple(item.arms)
    against = tuple(item.against)
    if unknown := [name for name in (*names, *against) if name not in known]:
        raise Unusable(f"hypothesis {item.statement!r}: there is no arm {', '.join(unknown)}")
    if item.metric != FINAL_SCORE:
        told = f"{item.prediction} (It is about {item.metric}, which is described and not judged.)"
        return Hypothesis(item.statement, told, names)
    if item.relation is None:
        return Hypothesis(item.statement, item.prediction, names)
    if not against and item.relation in (Relation.BETTER, Relation.WORSE, Relation.EQUIVALENT):
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
