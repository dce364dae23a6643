"""Topics of known meaning are answered as meant, or refused with a command that keeps every value."""

from __future__ import annotations

import re
import shlex
from random import Random
from typing import Any

import pytest
from drawn_topics import Drawn, draw_topic
from topic_commands import frame_command

from researcher.charter import Charter
from researcher.errors import TopicInvalid, TopicNotUnderstood
from researcher.planner.rules import RulesPlanner
from researcher.question.factors import SPECS, settings_of
from researcher.question.flags import value_as_text
from researcher.question.reader import read_topic
from researcher.study.settings import StudySettings, read_settings
from researcher.study.topics import read_request
from swarm.tasks import TASK_FAMILIES

DRAWN, DRAWN_SLOWLY, COMMANDS = 200, 5000, 20
LEAST_ANSWERED = 0.7
"""The share of the drawn topics that are answered: a reader that refuses everything passes every other test."""


def draw(number: int) -> Drawn:
    return draw_topic(Random(number))


def _frame(text: str) -> Charter:
    return RulesPlanner().frame(read_request(text, StudySettings(n_gpu=0)))


def _check_answer(topic: Drawn, charter: Charter) -> None:
    assert not topic.is_open and not topic.is_odd
    _check_meaning(topic, charter)
    assert charter.asks.asked is topic.asked
    assert topic.baseline is None or _level(*topic.baseline) in charter.baseline.split(", ")


def _check_meaning(topic: Drawn, charter: Charter) -> None:
    asks = charter.asks
    found = {factor.name: {level.name for level in factor.levels} for factor in asks.factors}
    assert found == {name: {_level(name, value) for value in values} for name, values in topic.asks.items()}
    expected = {
        key: value for name, each in topic.fixed.items() for key, value in settings_of(SPECS[name], each).items()
    }
    assert {name: value for name, value in asks.fixed.items() if name not in ("n_gpu", "total_steps")} == expected
    assert charter.environment_name == (topic.environment or "reverse")
    assert charter.sample_size is not None and charter.sample_size.seeds == topic.seeds
    assert asks.fixed.get("total_steps") == topic.steps


def _level(name: str, value: Any) -> str:
    return value_as_text(value) if name == "algorithm" else f"{name}={value_as_text(value)}"


def _check_refusal(topic: Drawn, refusal: TopicNotUnderstood) -> None:
    """Every number stands in the command or is named, and the command asks about nothing else."""
    assert refusal.parts and len(str(refusal).splitlines()) == 4
    command = command_of(refusal)
    flags = " ".join(word for word in command[4:])
    numbers = [float(number) for number in re.findall(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[-+]?\d+)?(?![\w.])", flags)]
    for text, value in topic.numbers:
        is_named = any(text.lower() in part.lower() for part in refusal.parts)
        assert value in numbers or is_named, (text, shlex.join(command))
    charter = charter_of(command)
    if not topic.is_open:
        _check_meaning(topic, charter)
    asked = {factor.name for factor in charter.asks.factors}
    assert asked <= {*topic.asks, *topic.fixed} or "in place of" in str(refusal), shlex.join(command)


def command_of(refusal: TopicNotUnderstood) -> list[str]:
    """The words of the command that a refusal suggests."""
    return _command_in(str(refusal))


def _command_in(text: str) -> list[str]:
    [line] = [line for line in text.splitlines() if "researcher start" in line]
    return shlex.split(line[line.index("researcher start") :])


def charter_of(command: list[str]) -> Charter:
    """The charter of a command, from its flags and its title."""
    flags = list(zip(command[2::2], command[3::2], strict=True))
    settings: dict[str, Any] = {"n_gpu": 0}
    for flag, text in flags:
        name = flag.removeprefix("--").replace("-", "_")
        if name in ("vary", "fix", "baseline"):
            settings[name] = (*settings.get(name, ()), text)
        elif name == "env" and text in TASK_FAMILIES:
            settings["family"] = text
        elif name != "topic":
            settings["asked" if name == "ask" else name] = text
    return RulesPlanner().frame(read_request(command[3], read_settings(settings)))


def _check(topic: Drawn) -> bool:
    """Check what becomes of a topic, and return whether it is answered."""
    try:
        charter = _frame(topic.text)
    except TopicNotUnderstood as refusal:
        _check_refusal(topic, refusal)
        return False
    except TopicInvalid as refusal:
        # A job that cannot be, which is named.
        assert str(refusal).startswith(("arm ", "--")), str(refusal)
        return True
    _check_answer(topic, charter)
    return True


@pytest.mark.parametrize("number", range(DRAWN))
def test_drawn_topic_is_answered_as_meant_or_refused_with_its_values(number: int) -> None:
    topic = draw(number)
    assert _check(topic) or not topic.is_plain, topic.text


def test_most_drawn_topics_are_answered() -> None:
    answered = [number for number in range(DRAWN) if not read_topic(draw(number).text).unread]
    assert len(answered) >= LEAST_ANSWERED * DRAWN


@pytest.mark.parametrize("number", range(COMMANDS))
def test_command_of_a_drawn_topic_is_read_or_refused_with_a_command_that_is_read(number: int) -> None:
    topic = draw(number)
    charter, answer = frame_command(["researcher", "start", "--topic", topic.text])
    if charter is None:
        charter, answer = frame_command(_command_in(answer))
        assert charter is not None, answer
    if not topic.is_open:
        _check_meaning(topic, charter)


@pytest.mark.slow
def test_many_drawn_topics_are_answered_as_meant_or_refused_with_their_values() -> None:
    for number in range(DRAWN, DRAWN_SLOWLY):
        topic = draw(number)
        assert _check(topic) or not topic.is_plain, (number, topic.text)
