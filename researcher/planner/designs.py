"""Layouts of arms: the settings that every job starts from, and the arms that the `rules` planner compares."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from types import MappingProxyType
from typing import Any

from researcher.charter import (
    SHARES_OF_SEARCH,
    Charter,
    DecisionRule,
    Design,
    Factor,
    FrameRequest,
    Level,
    Question,
    SampleSizeGoal,
    StudyKind,
)
from researcher.equal_amounts import describe_equal_amount, in_force, setting_of, usual_amount, usual_comparison
from researcher.errors import TopicInvalid
from researcher.history import History
from researcher.plan import Arm
from researcher.question.factors import PROGRAM
from researcher.question.needs import acting
from researcher.question.usual_job import DEFAULT_STEPS, usual_settings
from researcher.search.rules import PLAIN_PROGRAM
from swarm import TrainJob
from swarm.errors import JobInvalid
from swarm.job import TRAITS, build_job
from swarm.model_path import lr_by_size
from swarm.tasks import TASK_FAMILIES

STEPS: Mapping[str, int] = MappingProxyType(
    {"reverse": 30, "copy": 30, "sort": 40, "add": 40, "count": 30, "calc": 30, "guess": 50, "chain": 40}
)
"""The training steps within which the bundled model's learning curve bends; multi-turn tasks need more."""

DEFAULT_TASK = "reverse"
DEFAULT_MAX_TOKENS = 256
"""The bound on a reply, in tokens, if the environment sets none; it is also the default of a job."""
EVAL_EPISODES = 400
"""The episodes per score: the standard error of a run is at most 0.025.

With the bundled model they take two seconds, and a run takes thirty."""
BASELINE = "baseline"


def default_job(task: str, *, steps: int | None, base: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a job, where `base` are those that a person fixed."""
    job = {"engine": "local", **usual_settings(base)}
    job["lr"] = job["lr"] or lr_by_size(TrainJob(model=job["model"], lora_rank=job.get("lora_rank", 0)))
    return {**job, "total_steps": steps or base.get("total_steps") or STEPS.get(task, DEFAULT_STEPS)}


def draw_up_charter(request: FrameRequest, question: Question, name: str) -> Charter:
    """Return the charter of a question on the environment `name`, without its wording, its author and its baseline."""
    job = default_job(name, steps=request.steps, base=question.fixed)
    equal = request.equal or usual_comparison(question.varied)
    longest_reply = TASK_FAMILIES[name].max_tokens if name in TASK_FAMILIES else DEFAULT_MAX_TOKENS
    usual = usual_amount(equal, job, longest_reply)
    amount = (request.amount or usual) if usual else 0.0
    is_search = question.kind is StudyKind.OPTIMIZE
    return Charter(
        topic=" ".join(request.topic.split()),
        question="",
        environment_name=name,
        metric="mean reward of held-out episodes",
        direction="maximize",
        baseline="",
        search_split="validation",
        test_split="test",
        eval_episodes=request.eval_episodes or EVAL_EPISODES,
        rule=DecisionRule(shares=SHARES_OF_SEARCH) if is_search else DecisionRule(),
        budget=request.budget,
        planner="",
        assumptions=(describe_equal_amount(equal, amount),),
        compared_at=equal.value,
        amount=amount,
        sample_size=SampleSizeGoal(seeds=request.seeds, is_underpowered=request.is_underpowered),
        asks=question,
        job=job,
        eval_every=request.eval_every or 0,
        judged_by=request.judged_by,
        judged_level=request.judged_level,
        attempt_calls=request.attempt_calls,
        attempt_tokens=request.attempt_tokens,
        search=request.search if is_search else None,
    )


def lay_out(
    question: Question, job: Mapping[str, Any], options: Mapping[str, str] = MappingProxyType({})
) -> tuple[Arm, ...]:
    """Return the arms of a question: one per level of a single factor, or the combinations that its design prescribes.

    The baseline is the arm with the levels that the question compares with. If it names none, the baseline has the
    usual levels: those that leave `job` and the `options` of the environment unchanged. If no arm has these, it is the
    first arm. Settings that a factor needs are set in every arm, unless a person fixed them. An arm has no setting that
    nothing reads beside its others, such as the alpha of an adapter beside full parameters.
    """
    factors = question.factors
    job = _with_needs(question, job)
    usual = _usual_levels(question, job, options)
    if len(factors) == 1 or question.design is Design.FACTORIAL:
        choices = list(product(*(factor.levels for factor in factors)))
    else:
        choices = [usual]
        for index, factor in enumerate(factors):
            others = (level for level in factor.levels if level != usual[index])
            choices.extend((*usual[:index], level, *usual[index + 1 :]) for level in others)
    is_search = question.kind is StudyKind.OPTIMIZE
    arms = [_make_arm(levels, job, usual if is_search else ()) for levels in choices]
    baseline = choices.index(usual) if usual in choices else 0
    parent = arms[baseline].name
    return tuple(
        replace(arm, is_baseline=index == baseline, parent=None if index == baseline else parent)
        for index, arm in enumerate(arms)
    )


def lay_out_levels(
    question: Question,
    job: Mapping[str, Any],
    levels: Mapping[str, str],
    options: Mapping[str, str] = MappingProxyType({}),
) -> Arm:
    """Return the arm of a search with these levels, by factor, as `lay_out` makes it."""
    job = _with_needs(question, job)
    usual = _usual_levels(question, job, options)
    chosen = [level for factor in question.factors for level in factor.levels if level.name == levels[factor.name]]
    return _make_arm(chosen, job, usual)


def program_of(arm: Arm) -> str:
    """Return the name of the arm's program."""
    return str(arm.factors.get(PROGRAM, PLAIN_PROGRAM))


def contents_of(arm: Arm) -> str:
    """Return everything about an arm except its name, as text.

    The setting for kept checkpoints is left out: the loop sets it, and nothing that is learned depends on it. Raises
    JobInvalid if the arm's job is invalid.
    """
    job = build_job(dict(arm.job)).resolve().model_dump(mode="json", exclude={"save_freq"})
    return f"{json.dumps(job, sort_keys=True)} {program_of(arm)} {arm.environment}"


def refuse_equal_arms(arms: Sequence[Arm], charter: Charter) -> None:
    """Raise TopicInvalid if an arm is no valid job, or if the study would compare a job with itself.

    The space of a search may have settings that act only beside some levels of others.
    """
    seen: dict[str, Arm] = {}
    for arm in arms:
        try:
            other = seen.setdefault(contents_of(arm), arm)
        except JobInvalid as error:
            raise TopicInvalid(f"arm {arm.name}: {error.message}") from error
        idle = [name for name in arm.factors if name in TRAITS and name not in arm.job]
        if other is arm or (idle and charter.asks.kind is StudyKind.OPTIMIZE):
            continue
        why = f", as {' and '.join(idle)} has no effect there" if idle else ""
        raise TopicInvalid(
            f"--vary: {other.name} and {arm.name} are the same arm at equal {charter.compared_at}{why}: change one"
        )


def repeat_inconclusive(history: History) -> tuple[Arm, ...]:
    """Return the baseline and every arm that the last verdicts leave open."""
    arms = history.arms
    baseline = next((arm for arm in arms.values() if arm.is_baseline), next(iter(arms.values())))
    open_arms = [arms[item.arm] for item in history.analyses[-1].comparisons if item.is_open]
    return (baseline, *open_arms)


def _with_needs(question: Question, job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the job with the settings that the question's factors need, unless a person fixed them."""
    needs = {name: value for factor in question.factors for name, value in factor.needs.items()}
    return {**job, **{name: value for name, value in needs.items() if name not in question.fixed}}


def _usual_levels(question: Question, job: Mapping[str, Any], options: Mapping[str, str]) -> tuple[Level, ...]:
    return tuple(_usual_level(factor, job, options) for factor in question.factors)


def _usual_level(factor: Factor, job: Mapping[str, Any], options: Mapping[str, str]) -> Level:
    """Return the level that the question compares with, else the one that changes nothing, else the first one.

    A setting that the job does not state has the usual value of its model.
    """
    if factor.compared_with is not None:
        return next(level for level in factor.levels if level.name == factor.compared_with)
    usual = in_force(job)
    for level in factor.levels:
        is_job_as_is = all(value in (setting_of(job, key), usual.get(key)) for key, value in level.settings.items())
        if is_job_as_is and level.options.items() <= options.items():
            return level
    return factor.levels[0]


def _make_arm(levels: Sequence[Level], job: Mapping[str, Any], usual: Sequence[Level]) -> Arm:
    """Return the arm of these levels.

    All levels give it its name; in a search, only those that are not `usual`.
    """
    factors: dict[str, Any] = {}
    settings: dict[str, Any] = dict(job)
    for level in levels:
        factors |= level.factors
        settings |= level.settings
    named = [level.name for level in levels if level not in usual]
    name = " ".join(named) or BASELINE
    return Arm(name, factors, acting(settings), rationale=f"named by the question: {name}")
