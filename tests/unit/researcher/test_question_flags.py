"""Factors from flags: the arms of a plan are the charter's factors, and nothing else about them differs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from researcher.errors import TopicInvalid
from researcher.planner.rules import RulesPlanner
from researcher.question.factors import SPECS, FactorSpec
from researcher.question.flags import read_factors, read_fixed, value_as_text
from researcher.study.log import charter_from_json, to_json
from researcher.study.settings import read_request, read_settings
from researcher.types import Charter, Design, History, Plan, Question
from swarm.job import build_job

FOLLOWS = {"total_steps"}
"""What every arm gets the same of decides the number of steps."""
NOT_TOGETHER = {"rollout_rs", "rollout_rs_threshold", "rollout_is_batch_normalize", "gdpo_reward_weights"}
SIMPLE = ("lr", "batch_size", "temperature", "ppo_epochs", "weight_decay", "entropy_coeff", "grad_clip", "lora_rank")


def begin(**settings: Any) -> tuple[Charter, Plan]:
    planner = RulesPlanner()
    charter = planner.frame(read_request("A title", read_settings({"task": "sort", "engine": "fake", **settings})))
    # As a study does: frozen, stored and read again.
    charter = charter_from_json(to_json(charter))
    return charter, planner.plan(charter, History())


@pytest.mark.parametrize("spec", [spec for spec in SPECS.values() if len(spec.usual) > 1], ids=lambda spec: spec.name)
def test_two_levels_of_every_factor_are_two_jobs_that_differ_in_that_field_alone(spec: FactorSpec) -> None:
    values = spec.usual[:2]
    charter, plan = begin(vary=[f"{spec.name}={','.join(map(value_as_text, values))}"])

    jobs = [build_job(dict(arm.job)).model_dump(mode="json") for arm in plan.arms]
    differs = {name for name in jobs[0] if jobs[0][name] != jobs[1][name]} - FOLLOWS
    assert len(jobs) == 2 and differs <= {spec.name} and differs | FOLLOWS >= {spec.name}
    assert [factor.name for factor in charter.asks.factors] == [spec.name]


@given(data=st.data())
def test_arms_of_a_plan_are_the_factors_of_the_charter_and_nothing_else_differs(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(SIMPLE), min_size=1, max_size=3, unique=True))
    design = data.draw(st.sampled_from([None, *Design]))
    vary = [f"{name}={','.join(map(value_as_text, SPECS[name].usual[:2]))}" for name in names]
    charter, plan = begin(vary=vary, design=design if len(names) > 1 else None)

    assert len(plan.arms) == (1 + len(names) if design is Design.ONE_AT_A_TIME and len(names) > 1 else 2 ** len(names))
    for arm in plan.arms:
        assert set(arm.factors) == set(names)
        shared = {name: value for name, value in arm.job.items() if name not in {*names, *FOLLOWS}}
        assert shared == {name: value for name, value in charter.job.items() if name not in {*names, *FOLLOWS}}
        for factor in charter.asks.factors:
            level = next(item for item in factor.levels if item.factors[factor.name] == arm.factors[factor.name])
            assert all(arm.job[name] == value for name, value in level.settings.items())


def test_levels_that_set_several_things_are_one_factor() -> None:
    charter, plan = begin(vary=["short: batch_size=8,total_steps=60; long: batch_size=16,total_steps=30"])

    [factor] = charter.asks.factors
    assert [level.name for level in factor.levels] == ["short", "long"] == [arm.name for arm in plan.arms]
    assert [(arm.job["batch_size"], arm.job["total_steps"]) for arm in plan.arms] == [(8, 60), (16, 30)]


def test_fixed_settings_and_the_baseline_are_those_of_the_flags() -> None:
    charter, plan = begin(vary=["lr=1e-3,3e-3"], fix=["batch_size=8"], baseline=["lr=0.003"])

    assert (charter.baseline, charter.asks.fixed["batch_size"]) == ("lr=0.003", 8)
    assert {arm.job["batch_size"] for arm in plan.arms} == {8}


def test_what_a_factor_needs_stands_in_every_arm_unless_it_is_fixed() -> None:
    _, plan = begin(vary=["clip_ratio=0.1,0.3"])
    _, fixed = begin(vary=["clip_ratio=0.1,0.3"], fix=["mini_batch_num=2"])

    assert {arm.job["mini_batch_num"] for arm in plan.arms} == {4}
    assert {arm.job["mini_batch_num"] for arm in fixed.arms} == {2}


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
        ({"vary": ["lr=1e-3,3e-3"], "baseline": ["lr=5"]}, "there is no level 'lr=5'"),
        ({"vary": ["lr=1e-3,3e-3"], "fix": ["batch_size=2"], "job": {"batch_size": 3}}, "set by another flag"),
        ({"vary": ["lr=1e-3,3e-3"], "equal": "luck"}, "--equal"),
        ({"vary": ["a=1,2"]}, "no setting 'a'"),
        ({"vary": ["lr=1e-3,3e-3"], "asked": "interaction"}, "--ask interaction is about two factors"),
        ({"fix": ["nothing=1"], "vary": ["lr=1e-3,3e-3"]}, "no setting 'nothing'"),
    ],
)
def test_flags_that_contradict_each_other_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(TopicInvalid, match=message):
        begin(**settings)


@pytest.mark.parametrize("text", ["betas=[0.9, 0.95],[0.9, 0.999]", "lora_target_modules=all-linear,[q_proj, v_proj]"])
def test_values_that_are_lists_stand_in_brackets(text: str) -> None:
    [factor] = read_factors([text])

    assert len(factor.levels) == 2 and any(isinstance(level.factors[factor.name], list) for level in factor.levels)


def test_a_fixed_value_is_read_as_its_setting_reads_it() -> None:
    assert read_fixed(["lr=1e-3", "use_kl_loss=true", "algorithm=dr.grpo"]) == {
        "lr": 0.001,
        "use_kl_loss": True,
        "norm_adv_by_std_in_grpo": False,
        "loss_agg_mode": "seq-mean-token-sum-norm",
    }


def test_a_question_is_hashed_with_its_charter() -> None:
    charter, _ = begin(vary=["lr=1e-3,3e-3"])

    assert to_json(charter)["asks"]["factors"][0]["levels"][1]["settings"] == {"lr": 0.003}
    assert isinstance(charter.asks, Question)
