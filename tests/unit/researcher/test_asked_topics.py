"""Topics that people type: each is answered exactly as asked, or refused with a command that asks it in flags."""

from __future__ import annotations

import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from researcher import cli
from researcher.errors import TopicInvalid, TopicNotUnderstood
from researcher.planner.rules import RulesPlanner
from researcher.study.settings import StudySettings, read_request
from researcher.types import Charter, History

TOPICS = Path(__file__).parents[2] / "topics"


def _read(name: str) -> list[Any]:
    topics = tomllib.loads((TOPICS / f"{name}.toml").read_text(encoding="utf-8"))["topic"]
    return [pytest.param(topic, id=topic["text"][:60]) for topic in topics]


def _frame(text: str) -> Charter:
    return RulesPlanner().frame(read_request(text, StudySettings(n_gpu=0)))


def _check_answer(topic: dict[str, Any], charter: Charter) -> None:
    assert charter.task == topic.get("environment", "reverse")
    found = {factor.name: [level.factors[factor.name] for level in factor.levels] for factor in charter.asks.factors}
    assert found.keys() == topic["asks"].keys()
    for name, levels in topic["asks"].items():
        assert sorted(map(str, found[name])) == sorted(map(str, levels)) or (not levels and len(found[name]) > 1)
    fixed = {name: value for name, value in charter.asks.fixed.items() if name not in ("n_gpu", "total_steps")}
    assert fixed == topic.get("fixed", {})
    assert charter.baseline == topic.get("baseline", charter.baseline)


@pytest.mark.parametrize("topic", [*_read("natural"), *_read("documented")])
def test_topic_is_answered_as_asked_or_refused_by_name(topic: dict[str, Any]) -> None:
    try:
        charter = _frame(topic["text"])
    except TopicNotUnderstood as refusal:
        assert refusal.parts and len(str(refusal).splitlines()) <= 4
    else:
        _check_answer(topic, charter)


@pytest.mark.parametrize("text", tomllib.loads((TOPICS / "refused.toml").read_text(encoding="utf-8"))["texts"])
def test_topic_that_could_be_taken_for_another_question_is_refused(text: str) -> None:
    with pytest.raises(TopicNotUnderstood):
        _frame(text)


@pytest.mark.parametrize("topic", _read("natural"))
def test_the_command_of_a_refusal_asks_in_flags_and_nothing_else(topic: dict[str, Any]) -> None:
    try:
        _frame(topic["text"])
    except TopicNotUnderstood as refusal:
        [line] = [line for line in str(refusal).splitlines() if "researcher start" in line]
    else:
        return
    if "SETTING=" in line:
        # Nothing of the topic names a setting in words that are known: the person is shown the form.
        return
    asked: list[Charter] = []

    def check(topic: str, settings: StudySettings) -> tuple[str, ...]:
        asked.append(RulesPlanner().frame(settings.request(topic)))
        raise TopicInvalid("this is as far as it goes")

    words = shlex.split(line[line.index("researcher start") :])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("researcher.study.settings.check_study", check)
        patch.delenv("OPENAI_API_KEY", raising=False)
        done = CliRunner().invoke(cli.app, words[1:])
    assert done.exit_code == 2 and "this is as far as it goes" in done.stderr, done.stderr
    [charter] = asked
    assert charter.topic == topic["text"]
    assert {factor.name for factor in charter.asks.factors} <= {*topic["asks"], *topic.get("fixed", {}), "lr"}
    arms = RulesPlanner().plan(charter, History()).arms
    assert {name for arm in arms for name in arm.factors} == {factor.name for factor in charter.asks.factors}


def test_documented_topics_are_answered() -> None:
    answered = 0
    for topic in _read("documented"):
        try:
            _frame(topic.values[0]["text"])
        except TopicNotUnderstood:
            continue
        answered += 1
    assert answered >= 28
