"""Factors from flags: the arms of a plan are the charter's factors, and nothing else about them differs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from math import ceil
from typing import Any
from urllib.parse import parse_qsl

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from researcher.charter import Charter, ComparedAt, Design, FrameRequest, Level, StudiedEnvironment
from researcher.equal_amounts import MOST_STEPS_IN_TIME
from researcher.errors import SettingWithoutEffect, TopicInvalid
from researcher.history import History
from researcher.plan import Arm, Plan
from researcher.planner.rules import RulesPlanner
from researcher.question.asking import QuestionFlags, build_question
from researcher.question.factors import SPECS, FactorSpec
from researcher.question.flags import read_factors, read_fixed, value_as_text
from researcher.question.needs import acting, complete_flags
from researcher.record.log import charter_from_json, to_json
from researcher.study.settings import StudySettings, read_settings
from researcher.study.topics import read_request
from swarm.job import build_job

OPTIONS = {"grader": "exact", "max_tokens": "9"}
ENVIRONMENT = f"tasks.jsonl?{'&'.join('='.join(option) for option in OPTIONS.items())}"
OPTION_LEVELS = {"env.max_tokens": ("9", "30", "0.5"), "env.public": ("[a, b]", "a&b=1+1 %"), "env.split": ("x", "y")}
"""One that the environment has already, and texts that a reference has to quote."""


def begin(**settings: Any) -> tuple[Charter, Plan]:
    return frame(read_request("A title", read_settings({"family": "sort", "engine": "fake", **settings})))


def frame(request: FrameRequest) -> tuple[Charter, Plan]:
    """The charter of a request and its plan, as a study makes them: the charter is frozen, stored and read again."""
    planner = RulesPlanner()
    charter = charter_from_json(to_json(planner.frame(request)))
    return charter, planner.plan(charter, History())


def on_environment(settings: StudySettings) -> FrameRequest:
    """The request of a study on an environment that nobody opens."""
    environment = StudiedEnvironment(ENVIRONMENT, "tasks", "Questions.", "digest")
    without = settings.model_copy(update={"env": None, "vary": ("lr=1,2",), "fix": (), "baseline": ()})
    return replace(without.request("A title"), environment=environment, question=settings.question())


@pytest.mark.parametrize("spec", [spec for spec in SPECS.values() if len(spec.usual) > 1], ids=lambda spec: spec.name)
def test_two_levels_of_every_factor_are_two_jobs_that_differ_in_that_field_alone(spec: FactorSpec) -> None:
    vary = [f"{spec.name}={','.join(map(value_as_text, spec.usual[:2]))}"]
    charter, plan = begin(vary=vary, fix=complete_flags((), vary)[0], equal="steps")

    one, other = (build_job(dict(arm.job)).model_dump(mode="json") for arm in plan.arms)
    # The coefficient of a term is not in the arm without the term.
    beside = {name for arms in (plan.arms, plan.arms[::-1]) for name in arms[0].job.keys() - arms[1].job.keys()}
    assert {name for name in one if one[name] != other[name]} - (beside - {spec.name}) == {spec.name}
    assert all(build_job(dict(arm.job)).find_lacking(name) for arm in plan.arms for name in beside - arm.job.keys())
    assert [factor.name for factor in charter.asks.factors] == [spec.name]


@dataclass(frozen=True)
class Asked:
    """Flags that were drawn, with the levels of each factor in the order given, as texts."""

    settings: StudySettings
    levels: Mapping[str, tuple[str, ...]]


@st.composite
def questions(draw: st.DrawFn) -> Asked:
    """Flags of up to four factors, settings and options alike, which may contradict each other."""
    usual = {spec.name: tuple(map(value_as_text, spec.usual)) for spec in SPECS.values() if len(spec.usual) > 1}
    known = usual | OPTION_LEVELS
    names = draw(st.lists(st.sampled_from(sorted(known)), min_size=1, max_size=4, unique=True))
    levels = {
        name: tuple(draw(st.lists(st.sampled_from(known[name]), min_size=2, max_size=3, unique=True))) for name in names
    }
    vary = [f"{name}={','.join(texts)}" for name, texts in levels.items()]
    shown = {name: tuple(_level_name(name, text) for text in texts) for name, texts in levels.items()}
    if len(names) > 2 and draw(st.booleans()):
        first, second, *_ = names
        pairs = [f"{first}={levels[first][index]},{second}={levels[second][index]}" for index in range(2)]
        vary[:2] = [f"one: {pairs[0]}; two: {pairs[1]}"]
        shown = {"one/two": ("one", "two"), **{name: texts for name, texts in shown.items() if name in names[2:]}}
    others = sorted(usual.keys() - set(names))
    fixed = draw(st.lists(st.sampled_from(others), max_size=2, unique=True))
    every = [name for texts in shown.values() for name in texts]
    settings = {
        "vary": vary,
        "fix": [f"{name}={draw(st.sampled_from(usual[name]))}" for name in fixed],
        "baseline": draw(st.lists(st.sampled_from(every), max_size=1)),
        "design": draw(st.sampled_from([None, *Design])) if len(vary) > 1 else None,
        "equal": draw(st.sampled_from([None, "episodes", "steps", "tokens=5000", "time=60"])),
        "env": ENVIRONMENT,
        "engine": "fake",
    }
    return Asked(read_settings(settings), shown)


def _level_name(name: str, text: str) -> str:
    return text if name == "algorithm" else f"{name}={text}"


@given(asked=questions())
def test_arms_of_a_plan_are_the_factors_of_the_charter_and_nothing_else_differs(asked: Asked) -> None:
    try:
        charter, plan = frame(on_environment(asked.settings))
    except TopicInvalid as refusal:
        # A combination that is no job, or two flags about one setting.
        event("refused")
        assert str(refusal).startswith(("arm ", "--"))
        return

    factors = charter.asks.factors
    assert {factor.name: tuple(level.name for level in factor.levels) for factor in factors} == asked.levels
    [baseline] = [arm for arm in plan.arms if arm.is_baseline]
    assert charter.baseline == baseline.name
    chosen = [_levels_of(charter, arm) for arm in plan.arms]
    assert set(asked.settings.baseline) <= {level.name for level in _levels_of(charter, baseline)}
    _check_design(charter, [tuple(level.name for level in levels) for levels in chosen], plan.arms.index(baseline))
    for arm, levels in zip(plan.arms, chosen, strict=True):
        _check_job(charter, arm, levels, baseline)
        options = {name: value for level in levels for name, value in level.options.items()}
        assert (arm.environment is None) == (not options)
        assert dict(parse_qsl((arm.environment or "").partition("?")[2])) == (options and OPTIONS | options)


def _levels_of(charter: Charter, arm: Arm) -> tuple[Level, ...]:
    assert set(arm.factors) == {factor.name for factor in charter.asks.factors}
    return tuple(
        next(level for level in factor.levels if level.factors[factor.name] == arm.factors[factor.name])
        for factor in charter.asks.factors
    )


def _check_design(charter: Charter, arms: list[tuple[str, ...]], baseline: int) -> None:
    """Every combination is there once: all of them, or those with one level that is not the baseline's."""
    combinations = list(product(*([level.name for level in factor.levels] for factor in charter.asks.factors)))
    if charter.asks.design is Design.ONE_AT_A_TIME:
        usual = arms[baseline]
        combinations = [names for names in combinations if sum(a != b for a, b in zip(names, usual, strict=True)) <= 1]
    assert sorted(arms) == sorted(combinations)


def _check_job(charter: Charter, arm: Arm, levels: tuple[Level, ...], baseline: Arm) -> None:
    """The job is that of all arms with the settings of its levels; what is held equal may change its steps alone."""
    needs = {name: value for factor in charter.asks.factors for name, value in factor.needs.items()}
    needs = {name: value for name, value in needs.items() if name not in charter.asks.fixed}
    expected = {**charter.job, **needs, **{name: value for level in levels for name, value in level.settings.items()}}
    expected = acting(expected)
    job = dict(arm.job)
    build_job(job)
    steps, said = job.pop("total_steps"), expected.pop("total_steps")
    assert job == expected
    per_step, of_baseline = (each["batch_size"] * each["num_repeat"] for each in (arm.job, baseline.job))
    match ComparedAt(charter.compared_at):
        case ComparedAt.STEPS:
            assert steps == said
        case ComparedAt.EPISODES:
            wanted = baseline.job["total_steps"] * of_baseline
            assert steps == max(1, round(wanted / per_step)) and (arm is not baseline or steps == said)
        case ComparedAt.TOKENS:
            assert steps == ceil(charter.amount / per_step)
        case ComparedAt.TIME:
            assert steps == MOST_STEPS_IN_TIME * said


@pytest.mark.parametrize(
    ("vary", "message"),
    [
        (["lr"], "give values"),
        (["lr=1e-3"], "one level"),
        (["lr=1e-3,-1"], "lr cannot be '-1'"),
        (["learning_rate=1,2"], "did you mean 'lr'"),
        (["seed=1,2"], "--seeds"),
        (["save_freq=1,2"], "is no factor: it says which checkpoints are kept"),
        (["program=a,b"], "--program"),
        (["mixture={a: 1},{b: 1}"], "is no factor: all tasks of an environment are of one source"),
        (["env.=1,2"], "env. names no option"),
        (["env.x=1,1"], "env.x has one level, 1, 1: give two or more, or use --env"),
        (["env.x=1,2", "a: env.x=1; b: env.x=2"], "both set env.x"),
        (["a: env.x=1,env.x=2; b: env.x=3"], "sets env.x twice"),
        (["a: lr=1,lr=2; b: lr=3"], "sets lr twice"),
        (["lr=1e-3,3e-3", "a: lr=1e-3; b: lr=3e-3"], "both set lr"),
        (["a: lr=1e-3; a: lr=3e-3"], "name of its own"),
    ],
)
def test_factor_that_cannot_be_is_refused_by_name(vary: list[str], message: str) -> None:
    with pytest.raises(TopicInvalid, match=message):
        read_factors(vary)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"vary": ["lr=1e-3,3e-3"], "fix": ["lr=1"]}, "--fix fixes"),
        ({"vary": ["total_steps=2,3"], "steps": 5}, "--steps fixes"),
        ({"vary": ["algorithm=grpo,gspo"], "asked": "needed"}, "--ask needed compares one setting with its being off"),
        ({"vary": ["use_kl_loss=false,true", "lr=1e-3,3e-3"], "asked": "needed"}, "vary such a setting alone"),
        ({"kind": "optimize", "asked": "needed"}, "--ask needed compares"),
        ({"kind": "optimize", "asked": "equal"}, "is about given arms"),
        ({"vary": ["lr=1e-3,3e-3"], "baseline": ["lr=5"]}, "there is no level 'lr=5'"),
        ({"vary": ["lr=1e-3,3e-3"], "fix": ["batch_size=2"], "job": {"batch_size": 3}}, "set by another flag"),
        ({"vary": ["lr=1e-3,3e-3"], "equal": "luck"}, "--equal"),
        ({"vary": ["a=1,2"]}, "no setting 'a'"),
        ({"vary": ["lr=1e-3,3e-3"], "asked": "interaction"}, "--ask interaction is about two factors"),
        ({"vary": ["lr=1e-3,3e-3"], "fix": ["env.x=1"]}, r"--fix: env.x is an option of the environment.*\?x=1"),
        (
            {"vary": ["env.x=1,2"], "family": None},
            "env.x is an option of the environment, which no flag names: add --env",
        ),
        ({"vary": ["env.x=1,2"], "train_envs": ["a", "b"]}, "--train-env names several: give one"),
        ({"fix": ["nothing=1"], "vary": ["lr=1e-3,3e-3"]}, "no setting 'nothing'"),
    ],
)
def test_flags_that_contradict_each_other_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(TopicInvalid, match=message):
        begin(**settings)


@pytest.mark.parametrize(
    ("fix", "vary", "message"),
    [
        (["clip_ratio=0.3"], ["lr=1e-3,3e-3"], ""),
        (["clip_ratio=0.3", "model=/m"], ["lr=1e-3,3e-3"], "--fix: clip_ratio has no effect .* add --fix mini_batch_"),
        (["mini_batch_num=1"], ["clip_ratio=0.1,0.3"], "--vary: clip_ratio has no effect .* set --fix mini_batch_num"),
        (["mini_batch_num=1", "ppo_epochs=2"], ["clip_ratio=0.1,0.3"], ""),
        (["model=/m"], ["clip_ratio=0.1,0.3"], ""),
        (["clip_ratio=0.1"], ["mini_batch_num=1,4"], ""),
        (["model=/m"], ["algorithm=grpo,dapo"], "--vary: clip_ratio_high of dapo has no effect"),
    ],
)
def test_clip_range_is_refused_in_a_study_whose_arms_make_one_update_a_batch(
    fix: list[str], vary: list[str], message: str
) -> None:
    flags = QuestionFlags(fix=fix, vary=vary)
    if not message:
        assert build_question(flags).factors
        return
    with pytest.raises(SettingWithoutEffect, match=message):
        build_question(flags)


def test_a_fixed_value_is_read_as_its_setting_reads_it() -> None:
    assert read_fixed(["lr=1e-3", "use_kl_loss=true", "algorithm=dr.grpo"]) == {
        "lr": 0.001,
        "use_kl_loss": True,
        "norm_adv_by_std_in_grpo": False,
        "loss_agg_mode": "seq-mean-token-sum-norm",
    }
