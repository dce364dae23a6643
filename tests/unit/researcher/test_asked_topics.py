"""Topics that people type: each is answered as asked, or refused with the parts named that cannot be studied."""

from __future__ import annotations

import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest

from researcher.errors import TopicNotUnderstood
from researcher.planner.rules import RulesPlanner
from researcher.types import FrameRequest, History

TOPICS = Path(__file__).parents[2] / "topics"


def _read(name: str) -> list[Any]:
    topics = tomllib.loads((TOPICS / f"{name}.toml").read_text(encoding="utf-8"))["topic"]
    return [pytest.param(topic, id=topic["text"][:60]) for topic in topics]


@pytest.mark.parametrize("topic", [*_read("known"), *_read("held_out")])
def test_topic_is_answered_as_asked_or_refused_by_name(topic: dict[str, Any]) -> None:
    planner = RulesPlanner(gpus=0)
    if topic["outcome"] == "refused":
        with pytest.raises(TopicNotUnderstood) as refusal:
            planner.frame(FrameRequest(topic["text"]))
        assert set(topic["not_understood"]) <= set(refusal.value.parts)
        return

    charter = planner.frame(FrameRequest(topic["text"]))
    plan = planner.plan(charter, History())

    assert charter.task == topic["environment"]
    assert charter.not_studied == ()
    assert charter.compared_at == topic.get("compared_at", charter.compared_at)
    assert len(plan.seeds) == topic.get("seeds", len(plan.seeds))
    for name, levels in topic["factors"].items():
        found = list(dict.fromkeys(arm.factors[name] for arm in plan.arms))
        assert found == levels or (not levels and len(found) > 1)
    assert {name for arm in plan.arms for name in arm.factors} == set(topic["factors"])


@pytest.mark.parametrize("topic", [topic for topic in _read("known") if topic.values[0]["outcome"] == "refused"])
def test_nearest_study_of_a_refusal_can_be_done(topic: dict[str, Any]) -> None:
    with pytest.raises(TopicNotUnderstood) as refusal:
        RulesPlanner(gpus=0).frame(FrameRequest(topic["text"]))

    [line] = [line for line in str(refusal.value).splitlines() if line.startswith("nearest study: ")]
    words = shlex.split(line.removeprefix("nearest study: "))

    assert words[:3] == ["researcher", "start", "--topic"]
    assert RulesPlanner(gpus=0).frame(FrameRequest(words[3])).not_studied == ()


@pytest.mark.parametrize("topic", [topic for topic in _read("known") if topic.values[0]["outcome"] == "refused"])
def test_with_assume_the_charter_says_what_is_left_out(topic: dict[str, Any]) -> None:
    charter = RulesPlanner(gpus=0).frame(FrameRequest(topic["text"], assume=True))

    assert set(topic["not_understood"]) <= set(charter.not_studied)
