"""The plan of an iteration as a language model answers it.

Place in the flow: llm.py asks for a plan and gets one from here. An arm is a job of checked settings and the name of a
program. This module adds the charter's baseline itself. An answer that leaves the charter's question is refused by
name. This module asks nobody.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from researcher.charter import Charter, ComparedAt, Factor, Level, Question, SampleSizeGoal, StudyKind
from researcher.execution.job_check import contradict_name
from researcher.judge.contrasts import ARMS_OF_RELATION, is_complete
from researcher.plan import Arm, Contrast, Hypothesis, Plan, Relation
from researcher.planner.base import History
from researcher.planner.designs import lay_out
from researcher.planner.equal_amounts import episodes_per_step, hold_equal
from researcher.planner.language_model.answers import ArmAnswer, HypothesisAnswer, PlanAnswer, Unusable, parse_answer
from researcher.planner.language_model.briefing import TUNABLE
from researcher.question.factors import PROGRAM
from swarm import TrainJob
from swarm.errors import JobInvalid
from swarm.job import build_job

MAX_SEEDS = 10
MAX_EPISODES_PER_STEP = 2_048
"""The largest number of tasks times repeats, sixteen times the usual one.

With more, an arm would simply buy its score with data."""
PLAIN_PROGRAM = "plain"
"""The name of the program of an arm that changes only settings."""


def parse_plan(text: str, charter: Charter, history: History) -> Plan:
    """Return the plan that an answer makes, with the baseline first.

    Raises Unusable if the answer is invalid or leaves the charter's question.
    """
    answer = parse_answer(text, PlanAnswer)
    seeds = _read_seeds(answer.seeds, charter)
    if len({item.name for item in answer.arms}) < len(answer.arms):
        raise Unusable("two arms have the same name")
    earlier = {arm.name: arm for plan in history.plans for arm in plan.arms}
    read = [find_baseline(charter), *(_read_arm(item, charter) for item in answer.arms)]
    baseline, *others = hold_equal(read, ComparedAt(charter.compared_at), charter.amount)
    for arm in others:
        if arm.name == baseline.name and contents_of(arm) != contents_of(baseline):
            raise Unusable(f"arm {arm.name!r} is the baseline, and has other settings or another program: leave it out")
    arms = [baseline, *(arm for arm in others if arm.name != baseline.name)]
    _check_arms(arms, earlier)
    _check_design(arms, earlier, charter)
    arms = _set_parents(_set_factors(arms, earlier, charter.asks), earlier)
    known = {*earlier, *(arm.name for arm in arms)}
    hypotheses = tuple(_read_hypothesis(item, known, charter.baseline) for item in answer.hypotheses)
    _check_cost(len(arms) * seeds, charter, history)
    # Later plans use fresh seeds, for the baseline too, so that no score that led to a plan also judges it.
    first = max((seed for plan in history.plans for seed in plan.seeds), default=-1) + 1
    return Plan(len(history.plans), hypotheses, tuple(arms), tuple(range(first, first + seeds)), answer.rationale)


def find_baseline(charter: Charter) -> Arm:
    """Return the arm that the others are compared with, under the charter's name for it."""
    arm = next(arm for arm in lay_out(charter.asks, charter.job) if arm.is_baseline)
    return replace(arm, name=charter.baseline, rationale="the baseline")


def start_job(charter: Charter) -> dict[str, Any]:
    """Return the settings that every arm starts from, including those that the factors need."""
    needs = {name: value for factor in charter.asks.factors for name, value in factor.needs.items()}
    return {**charter.job, **{name: value for name, value in needs.items() if name not in charter.asks.fixed}}


def program_of(arm: Arm) -> str:
    """Return the name of the arm's program."""
    return str(arm.factors.get(PROGRAM, PLAIN_PROGRAM))


def contents_of(arm: Arm) -> str:
    """Return everything about an arm except its name, as text.

    The setting for kept checkpoints is left out: the loop sets it, and nothing that is learned depends on it. Raises
    JobInvalid if the arm's job is invalid.
    """
    job = build_job(dict(arm.job)).resolve().model_dump(mode="json", exclude={"save_freq"})
    return f"{json.dumps(job, sort_keys=True)} {program_of(arm)}"


def _read_seeds(asked: int, charter: Charter) -> int:
    goal = charter.sample_size or SampleSizeGoal()
    if goal.seeds is not None:
        return goal.seeds
    if not charter.rule.min_seeds <= asked <= MAX_SEEDS:
        raise Unusable(f"seeds must be from {charter.rule.min_seeds} to {MAX_SEEDS}, got {asked}")
    return asked


def _read_arm(item: ArmAnswer, charter: Charter) -> Arm:
    """Return the arm, with its program among its factors.

    Raises Unusable if a setting is unknown or invalid.
    """
    question = charter.asks
    known = question.varied if question.factors else TUNABLE
    if foreign := sorted(item.settings.keys() - set(known)):
        choice = f"choose from {', '.join(known)}" if known else "the question varies no setting"
        raise Unusable(f"arm {item.name}: {', '.join(foreign)} cannot be set; {choice}")
    job = start_job(charter) | item.settings
    try:
        checked = build_job(job)
    except JobInvalid as error:
        raise Unusable(f"arm {item.name}: {error.message}") from error
    if not question.factors and episodes_per_step(job) > MAX_EPISODES_PER_STEP:
        raise Unusable(f"arm {item.name}: batch_size * num_repeat is above {MAX_EPISODES_PER_STEP}")
    # Keep the values as the job parsed them: "1e-3" in quotes becomes a number, a list becomes a tuple.
    job |= {name: checked.model_dump(mode="json")[name] for name in item.settings}
    arm = Arm(item.name, {PROGRAM: item.program or PLAIN_PROGRAM}, job, item.rationale)
    return replace(arm, factors=_find_levels(arm, charter)) if question.factors else arm


def _find_levels(arm: Arm, charter: Charter) -> dict[str, Any]:
    """Return the factors of an arm by its levels.

    Raises Unusable if the arm is outside the question.
    """
    factors: dict[str, Any] = {}
    for factor in charter.asks.factors:
        levels = [level for level in factor.levels if _has_level(arm, factor, level, charter)]
        if not levels:
            known = ", ".join(level.name for level in factor.levels)
            raise Unusable(f"arm {arm.name}: {factor.name} has one of the levels {known}")
        factors |= levels[0].factors
    if PROGRAM not in factors and program_of(arm) != PLAIN_PROGRAM:
        raise Unusable(f"arm {arm.name}: the question compares no programs: leave program out")
    return factors


def _has_level(arm: Arm, factor: Factor, level: Level, charter: Charter) -> bool:
    if factor.name == PROGRAM:
        return level.name == program_of(arm)
    start = start_job(charter)
    # A setting that only other levels of the factor set has the value that every arm starts from.
    wanted = {name: _setting(start, name) for name in factor.varied} | dict(level.settings)
    return all(_setting(arm.job, name) == value for name, value in wanted.items())


def _check_arms(arms: Sequence[Arm], earlier: Mapping[str, Arm]) -> None:
    """Raise Unusable for too few arms, duplicates, misleading names, or a name that was used for another arm."""
    if len(arms) < 2:
        raise Unusable("at least one arm besides the baseline is needed")
    for arm in arms:
        if arm.name in earlier and contents_of(earlier[arm.name]) != contents_of(arm):
            raise Unusable(
                f"arm {arm.name!r} has run with other settings: use another name, or its settings and program as they "
                "were"
            )
        if problem := contradict_name(arm.name, arm.job):
            raise Unusable(f"arm {arm.name!r}: {problem}")
    seen: dict[str, str] = {}
    for arm in {**earlier, **{arm.name: arm for arm in arms}}.values():
        other = seen.setdefault(contents_of(arm), arm.name)
        if other != arm.name:
            raise Unusable(f"arms {other!r} and {arm.name!r} have the same settings and the same program")


def _check_design(arms: Sequence[Arm], earlier: Mapping[str, Arm], charter: Charter) -> None:
    """Raise Unusable if a comparing study leaves out an arm of its question; a search may do so."""
    if charter.asks.kind is StudyKind.OPTIMIZE:
        return
    found = [dict(arm.factors) for arm in (*earlier.values(), *arms)]
    missing = [arm.name for arm in lay_out(charter.asks, charter.job) if dict(arm.factors) not in found]
    if missing:
        raise Unusable(f"the question asks for {', '.join(missing)} as well, which no arm has")


def _set_factors(arms: Sequence[Arm], earlier: Mapping[str, Arm], question: Question) -> list[Arm]:
    """Return the arms with the factors that the study compares, whatever the model says about them.

    If the question leaves the factors open, they are the settings in which the arms differ, and the programs if they
    differ.
    """
    if question.factors:
        return list(arms)
    everything = [*earlier.values(), *arms]
    varied = [name for name in TUNABLE if len({json.dumps(_setting(arm.job, name)) for arm in everything}) > 1]
    is_compared = len({program_of(arm) for arm in everything}) > 1
    return [
        replace(
            arm,
            factors={name: _setting(arm.job, name) for name in varied}
            | ({PROGRAM: program_of(arm)} if is_compared else {}),
        )
        for arm in arms
    ]


def _set_parents(arms: Sequence[Arm], earlier: Mapping[str, Arm]) -> list[Arm]:
    """Return each arm with its parent: the first arm with the same program, else the baseline."""
    baseline = arms[0]
    first: dict[str, str] = {}
    for arm in (baseline, *earlier.values(), *arms):
        first.setdefault(program_of(arm), arm.name)
    parents = [first[program_of(arm)] for arm in arms[1:]]
    return [
        baseline,
        *(
            replace(arm, parent=baseline.name if parent == arm.name else parent)
            for arm, parent in zip(arms[1:], parents, strict=True)
        ),
    ]


def _read_hypothesis(item: HypothesisAnswer, known: Collection[str], baseline: str) -> Hypothesis:
    """Return the hypothesis of an answer.

    Raises Unusable for unknown arms, or fewer arms than its relation takes.
    """
    names = tuple(item.arms)
    against = tuple(item.against)
    if unknown := [name for name in (*names, *against) if name not in known]:
        raise Unusable(f"hypothesis {item.statement!r}: there is no arm {', '.join(unknown)}")
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


def _setting(job: Mapping[str, Any], name: str) -> Any:
    return job.get(name, TrainJob.model_fields[name].default)
