"""The scope of a study: what flags, factors, programs and the words of a topic say of it, and what contradicts it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from prompts import load
from researcher.charter import Charter, FrameRequest, Question, StudiedEnvironment, StudyKind
from researcher.cli.commands import app
from researcher.errors import TopicInvalid
from researcher.planner.rules import RulesPlanner, build_rules_planner
from researcher.programs import load_program_code
from researcher.question.reader import read_topic
from researcher.question.scopes import describe_scope, read_scope
from researcher.question.wording import describe_question
from researcher.record.log import charter_from_json, to_json
from researcher.study.settings import StudySettings, read_settings
from researcher.study.topics import complete_from_topic

PLAIN, REWARD, AGENT, ORDER = (
    load("program"),
    *map(load_program_code, ("shaped-by-details", "best-of-n", "easy-first")),
)

AGENTS = ("answer-check-answer", "best-of-n", "scratchpad")


def complete(topic: str = "A title", **flags: Any) -> StudySettings:
    if "programs" in flags:
        flags["programs"] = [{"name": f"p{index}", "code": code} for index, code in enumerate(flags["programs"])]
    return complete_from_topic(topic, read_settings({"family": "sort", "engine": "fake", **flags}))


def scope_of(topic: str = "A title", **flags: Any) -> str:
    return describe_scope(complete(topic, **flags).question().scope)


def frame(topic: str, **flags: Any) -> Charter:
    settings = complete(topic, **flags)
    return charter_from_json(to_json(build_rules_planner(settings).frame(settings.request(topic))))


@pytest.mark.parametrize(
    ("flags", "scope"),
    [
        ({"vary": ["lr=1,2", "num_repeat=4,8"]}, "settings (lr, num_repeat)"),
        ({"vary": ["model=nano,micro"]}, "model"),
        ({"vary": ["short: batch_size=8,total_steps=60; long: batch_size=16"]}, "settings (batch_size, total_steps)"),
        ({"vary": ["algorithm=grpo,dapo"]}, "settings (algorithm)"),
        ({"vary": ["env.length=2,3"]}, "train-environment"),
        ({"vary": ["lr=1,2", "env.length=2,3"]}, "settings (lr), train-environment"),
        ({"train_envs": ["copy", "sort"]}, "train-environment"),
        ({"programs": [PLAIN, REWARD]}, "reward"),
        ({"programs": [PLAIN, AGENT]}, "agent"),
        ({"programs": [PLAIN, ORDER, REWARD], "vary": ["lr=1,2"]}, "settings (lr), reward, schedule"),
        ({"programs": [REWARD], "vary": ["lr=1,2"]}, "settings (lr)"),
        ({"kind": "optimize"}, "settings, reward, schedule, agent"),
        ({"kind": "optimize", "scope": "schedule, reward"}, "reward, schedule"),
        ({"kind": "optimize", "scope": "LR"}, "settings (lr)"),
        ({"vary": ["lr=1,2"], "scope": "settings"}, "settings (lr)"),
        ({"planner": "llm", "model": "m"}, "settings, reward, schedule, agent"),
        ({"planner": "llm", "model": "m", "scope": "agent"}, "agent"),
    ],
)
def test_scope_is_that_of_the_flags(flags: dict[str, Any], scope: str) -> None:
    assert scope_of(**flags) == scope


@pytest.mark.parametrize(
    ("topic", "scope"),
    [
        ("Find a good reward for sorting letters", "reward"),
        ("a reward function for sorting letters", "reward"),
        ("Find a curriculum or an order of tasks for sorting", "schedule"),
        ("Which prompt trains sorting best?", "agent"),
        ("search for a workflow and a reward for sorting", "reward, agent"),
        ("tune the hyperparameters for sorting", "settings"),
        ("Find the best settings and a reward for sorting", "settings, reward"),
        ("Ours pays for one letter. Which training reward makes sorting best?", "reward"),
        ("Is sorting hard? Find a prompt for sorting", "agent"),
        # These look for none of them.
        ("Find sorting. Does it get a better reward?", ""),
        ("Make sorting work", ""),
        ("Find the best recipe for sorting", ""),
        ("Does a larger learning rate give a better reward on sorting?", ""),
        ("Which learning rate gets the best reward on sorting?", ""),
        ("Is an agent with a prompt better?", ""),
        ("optimize the reward on sorting", ""),
        ("Find a reward model for sorting", ""),
    ],
)
def test_topic_says_what_it_looks_for(topic: str, scope: str) -> None:
    assert ", ".join(read_topic(topic).sought) == scope
    open_parts = "settings, reward, schedule, agent"
    assert scope_of(topic, planner="llm", model="m") == (scope or open_parts)


@pytest.mark.parametrize(
    ("topic", "flags", "said"),
    [
        ("A title", {"kind": "optimize", "scope": "rewards"}, "'rewards': did you mean 'reward'.*schedule"),
        ("A title", {"kind": "optimize", "scope": " , "}, "names nothing"),
        ("A title", {"kind": "optimize", "scope": "seed"}, "seed is no factor"),
        ("A title", {"kind": "optimize", "scope": "program"}, "agent, a reward and a schedule"),
        ("A title", {"kind": "optimize", "scope": "settings,lr"}, "leave one of both out"),
        ("A title", {"kind": "optimize", "scope": "model"}, "--vary model=nano,micro"),
        ("A title", {"kind": "optimize", "scope": "train-environment"}, "--train-env"),
        ("A title", {"vary": ["lr=1,2"], "scope": "reward"}, "differ in settings, lr as well|differ in settings"),
        ("A title", {"vary": ["lr=1,2", "num_repeat=4,8"], "scope": "lr"}, "differ in num_repeat"),
        ("A title", {"vary": ["lr=1,2"], "scope": "lr,reward"}, "reward, in which no arm"),
        ("A title", {"programs": [PLAIN, AGENT], "scope": "reward"}, "differ in agent"),
        ("A good reward for sorting", {"programs": [PLAIN, AGENT]}, "looks for reward.*agent"),
        ("A good reward for sorting", {"kind": "optimize", "scope": "agent"}, "looks for reward.*--scope says agent"),
        ("Which settings sort best?", {"programs": [PLAIN, REWARD]}, "looks for settings.*reward"),
    ],
)
def test_scope_that_is_none_or_contradicts_is_refused_by_name(topic: str, flags: dict[str, Any], said: str) -> None:
    with pytest.raises(TopicInvalid, match=said):
        scope_of(topic, **flags)


def test_programs_that_differ_in_texts_alone_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        Path(f"{name}.py").write_text(f'"""{name}"""\nfrom swarm.program import answer_in_turn as agent\n')
    programs = ["--program", "one.py", "--program", "two.py"]
    flags = ["--env", "sort", "--planner", "rules", "--engine", "fake", *programs]
    done = CliRunner().invoke(app, ["start", "--topic", "Which?", *flags])
    assert done.exit_code == 2 and "one and two are the same program" in done.stderr


@pytest.mark.parametrize(
    ("topic", "factors", "scope"),
    [
        ("Find a good reward for sorting", {"program": ["plain", "shaped-by-details"]}, "reward"),
        ("Find a good curriculum for sorting", {"program": ["plain", "easy-first"]}, "schedule"),
        (
            "Find a workflow for sorting",
            {"program": ["plain", "answer-check-answer", "best-of-n", "scratchpad"]},
            "agent",
        ),
    ],
)
def test_search_by_rules_tries_what_its_topic_looks_for_alone(topic: str, factors: Any, scope: str) -> None:
    charter = frame(topic)
    assert {factor.name: [level.name for level in factor.levels] for factor in charter.asks.factors} == factors
    assert describe_scope(charter.asks.scope) == scope
    assert charter.question.startswith(f"Which {'order of tasks' if scope == 'schedule' else scope} trains ")
    assert f"  arms may differ in: {scope}" in list(describe_question(charter))


def test_search_by_rules_keeps_to_named_settings_and_says_in_what_its_arms_differ() -> None:
    charter = frame("A title", kind="optimize", scope="entropy_coeff,lr")
    assert [factor.name for factor in charter.asks.factors] == ["entropy_coeff", "lr"]
    every = describe_scope(frame("Find the best recipe for sorting").asks.scope)
    assert every.startswith("settings (lr, num_repeat, ") and every.endswith("), reward, schedule, agent")


def test_scope_in_which_rules_have_nothing_to_try_is_refused() -> None:
    own = StudiedEnvironment("verifiers:some", "some", "It runs an agent of its own.", "digest")
    asked = Question(kind=StudyKind.OPTIMIZE, scope=read_scope("agent"))
    with pytest.raises(TopicInvalid, match="rules have nothing to try in agent"):
        RulesPlanner().frame(FrameRequest("A title", environment=own, question=asked))


def test_scope_of_flags_is_read_as_it_is_shown() -> None:
    scope = read_scope("agent,lr,model")
    assert describe_scope(scope) == "settings (lr), agent, model"
    assert scope.asks_agents and scope.allows_setting("lr") and not scope.allows_setting("num_repeat")
