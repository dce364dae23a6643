"""Arms of a planner that asks in words are held to the scope of their study when they are written."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
from recorded_answers import arm

from experiments_db import Experiment
from prompts import load
from researcher.charter import Charter, Question
from researcher.execution.arm_scope import find_parts_outside, find_settings_outside
from researcher.history import History
from researcher.planner.language_model.answers import Unusable
from researcher.planner.language_model.briefing import list_fixed, show_choice
from researcher.planner.language_model.framing import parse_frame
from researcher.planner.language_model.plans import parse_plan, parse_round
from researcher.programs import load_program_code
from researcher.question.flags import read_factors
from researcher.question.scopes import describe_scope, read_scope
from researcher.study.settings import read_settings
from researcher.study.topics import complete_from_topic

PLAIN = load("program")


def frame(topic: str, answer: dict[str, Any] | None = None, **flags: Any) -> Charter:
    settings = complete_from_topic(topic, read_settings({"planner": "llm", "model": "m", "engine": "fake", **flags}))
    text = json.dumps({"question": "What sorts best?", "family": "sort", "kind": "optimize", **(answer or {})})
    framed = parse_frame(text, settings.request(topic), "llm:m")
    assert isinstance(framed, Charter)
    return framed


def scope_of(topic: str, answer: dict[str, Any] | None = None, **flags: Any) -> str:
    return describe_scope(frame(topic, answer, **flags).asks.scope)


OPEN_TOPIC, REWARDS = "Make sorting work", "Find a good reward for sorting letters"
RATES = {"kind": "compare", "vary": ["lr=1e-3,3e-3"]}
REWARD_NAMES = {"kind": "compare", "programs": ["plain", "dense"]}


@pytest.mark.parametrize(
    ("topic", "answer", "flags", "scope"),
    [
        (REWARDS, {}, {}, "reward"),
        (REWARDS, REWARD_NAMES, {}, "reward"),
        (OPEN_TOPIC, {}, {}, "settings, reward, schedule, agent"),
        (OPEN_TOPIC, {"scope": ["lr", "agent"]}, {}, "settings (lr), agent"),
        (OPEN_TOPIC, REWARD_NAMES, {}, "reward, schedule, agent"),
        (OPEN_TOPIC, {"scope": ["reward"], **REWARD_NAMES}, {}, "reward"),
        (OPEN_TOPIC, RATES, {}, "settings (lr)"),
        (OPEN_TOPIC, {"scope": ["reward"]}, {"scope": "reward,agent"}, "reward"),
        ("Find settings or a reward for sorting", {"scope": ["reward"]}, {}, "reward"),
    ],
)
def test_a_frame_has_the_scope_of_topic_and_flags_or_a_part_of_it(
    topic: str, answer: dict[str, Any], flags: dict[str, Any], scope: str
) -> None:
    assert scope_of(topic, answer, **flags) == scope


@pytest.mark.parametrize(
    ("topic", "answer", "flags", "said"),
    [
        (REWARDS, {"scope": ["reward", "agent"]}, {}, "reward alone, and the answer adds agent"),
        (REWARDS, RATES, {}, "reward alone, and the answer adds settings"),
        (OPEN_TOPIC, {"scope": ["agent"]}, {"scope": "reward"}, "adds agent"),
        (OPEN_TOPIC, {"scope": ["settings"]}, {"scope": "lr"}, "adds all settings"),
        (OPEN_TOPIC, REWARD_NAMES, {"scope": "lr"}, "leave programs out"),
        (OPEN_TOPIC, {"scope": ["style"]}, {}, "'style'.*choose from"),
    ],
)
def test_a_frame_never_widens_the_scope(topic: str, answer: dict[str, Any], flags: dict[str, Any], said: str) -> None:
    with pytest.raises(Unusable, match=said):
        frame(topic, answer, **flags)


def test_an_arm_outside_of_the_scope_is_refused_by_name_and_the_choice_says_what_is_open() -> None:
    rewards, rates = frame(REWARDS), frame(OPEN_TOPIC, {"scope": ["lr"]})
    for charter, fields, said in (
        (rewards, {"settings": {"lr": 0.003}, "program": "dense"}, "lr cannot be set; arms may differ in reward alone"),
        (rates, {"program": "asks twice"}, "settings .lr. alone: leave program out"),
        (rates, {"settings": {"num_repeat": 4}}, "num_repeat cannot be set; choose from lr"),
    ):
        answer = json.dumps({"rationale": "r", "arms": [arm("a", "draft", **fields)]})
        with pytest.raises(Unusable, match=said):
            parse_round(answer, charter, History(runs_left=12.0), ())
    assert "- none" in (shown := show_choice(rewards)) and "training reward" in shown and "agent" not in shown
    assert "- lr:" in (shown := show_choice(rates)) and "num_repeat" not in shown and "leave program out" in shown


def test_a_setting_that_a_person_names_is_open_although_no_planner_may_choose_it() -> None:
    charter = frame(OPEN_TOPIC, scope="max_response_length")
    longer = {"rationale": "r", "seeds": 3, "arms": [arm("a", settings={"max_response_length": 64})]}
    assert parse_plan(json.dumps(longer), charter, History()).arms[1].factors == {"max_response_length": 64}


def test_a_planner_is_told_what_a_person_or_the_topic_fixed() -> None:
    settings = complete_from_topic(REWARDS, read_settings({"planner": "llm", "model": "m"}))
    fixed = list_fixed(settings.request(REWARDS))
    assert "- scope: reward" in fixed and "- family: sort" in fixed
    assert "scope" not in list_fixed(read_settings({"planner": "llm", "model": "m"}).request(OPEN_TOPIC))


@pytest.mark.parametrize(
    ("code", "scope", "named"),
    [
        (load_program_code("best-of-n"), "reward", ("agent",)),
        (load_program_code("easy-first"), "reward,agent", ("schedule",)),
        (load_program_code("shaped-by-details"), "reward", ()),
        (load_program_code("shaped-by-details"), "lr", ("reward",)),
        ("from swarm.program import answer_in_turn as agent\ndef reward(task, transcript, grade):\n    return 1.0\n",
         "reward", ()),
    ],
)  # fmt: skip
def test_a_program_with_another_part_than_the_scope_allows_is_named_with_what_to_leave_out(
    code: str, scope: str, named: tuple[str, ...]
) -> None:
    problems = find_parts_outside(code, PLAIN, read_scope(scope))
    assert [problem.stage for problem in problems] == ["scope"] * len(named)
    for name, problem in zip(named, problems, strict=True):
        assert f"its {name} is not the baseline's" in problem.message and f"the function {name}" in problem.message


def test_an_arm_keeps_an_agent_that_the_baseline_has() -> None:
    own = load_program_code("best-of-n")
    shaped = own + load_program_code("shaped-by-details").partition('"""\n')[2]
    assert find_parts_outside(shaped, own, read_scope("reward")) == ()
    [problem] = find_parts_outside(load_program_code("shaped-by-details"), own, read_scope("reward"))
    assert "its agent is not the baseline's" in problem.message


def experiment(environment: str | None = None, **job: Any) -> Experiment:
    return cast(Experiment, SimpleNamespace(job={"model": "nano", "lr": 0.001, **job}, train_environment=environment))


@pytest.mark.parametrize(
    ("arm_of", "asks", "named"),
    [
        (experiment(lr=0.003), Question(scope=read_scope("reward")), "lr"),
        (experiment(lr=0.003), Question(scope=read_scope("lr")), ""),
        (experiment(num_repeat=4), Question(scope=read_scope("lr")), "num_repeat"),
        (experiment(model="micro"), Question(scope=read_scope("settings")), "model"),
        (experiment("copy"), Question(scope=read_scope("settings")), "the training environment"),
        (experiment(total_steps=60), Question(scope=read_scope("reward")), ""),
        (experiment(clip_ratio_high=0.28),
         Question(factors=read_factors(["algorithm=grpo,dapo"]), scope=read_scope("algorithm")), ""),
    ],
)  # fmt: skip
def test_a_setting_outside_of_the_scope_is_named(arm_of: Experiment, asks: Question, named: str) -> None:
    problems = find_settings_outside(arm_of, experiment(), asks)
    assert [f"its {named} differ" in problem.message for problem in problems] == ([True] if named else [])


@pytest.mark.parametrize(
    ("topic", "answer", "model"),
    [
        ("Find settings for sorting with micro", {}, "micro"),
        ("Make sorting work", {"fix": ["model=micro"]}, "micro"),
        ("Make sorting work", {}, "nano"),
    ],
)
def test_a_model_that_topic_or_frame_names_is_trained(topic: str, answer: dict[str, Any], model: str) -> None:
    assert frame(topic, answer).job["model"] == model


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"question": "What sorts best with micro?"}, "speaks of micro, and the study trains nano"),
        ({"assumptions": ["The runs are on micro."]}, "fix model=micro"),
        ({"fix": ["model=gpt-9"]}, "no model 'gpt-9' here"),
        ({"kind": "compare", "vary": ["model=nano,micro"]}, "a person alone may ask for model"),
    ],
)
def test_a_frame_that_speaks_of_another_model_than_it_trains_is_refused(answer: dict[str, Any], said: str) -> None:
    with pytest.raises(Unusable, match=said):
        frame("Make sorting work", answer)
