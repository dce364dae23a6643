"""Topics that people type: each is answered exactly as asked, or refused with a command that asks it in flags."""

from __future__ import annotations

import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
from topic_commands import frame_command

from researcher.charter import Asked, Charter
from researcher.errors import SettingWithoutEffect, TopicNotUnderstood
from researcher.history import History
from researcher.planner.rules import RulesPlanner
from researcher.question.factors import SPECS
from researcher.study.settings import StudySettings
from researcher.study.topics import read_request

TOPICS = Path(__file__).parents[2] / "topics"


def _read(name: str) -> list[Any]:
    topics = tomllib.loads((TOPICS / f"{name}.toml").read_text(encoding="utf-8"))["topic"]
    return [pytest.param(topic, id=topic["text"][:60]) for topic in topics]


def _frame(text: str) -> Charter:
    return RulesPlanner().frame(read_request(text, StudySettings(n_gpu=0)))


def _check_answer(topic: dict[str, Any], charter: Charter) -> None:
    assert charter.environment_name == topic.get("environment", "reverse")
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
    except SettingWithoutEffect as refusal:
        assert refusal.added and len(str(refusal).splitlines()) <= 4
    else:
        _check_answer(topic, charter)


REFUSED = tomllib.loads((TOPICS / "refused.toml").read_text(encoding="utf-8"))["texts"]


@pytest.mark.parametrize("text", REFUSED)
def test_topic_that_could_be_taken_for_another_question_is_refused(text: str) -> None:
    with pytest.raises(TopicNotUnderstood):
        _frame(text)


def _refusal(text: str) -> str | None:
    """The line of a refusal that has the command; None where the topic is answered."""
    try:
        _frame(text)
    except (TopicNotUnderstood, SettingWithoutEffect) as refusal:
        assert len(str(refusal).splitlines()) <= 4
        [line] = [line for line in str(refusal).splitlines() if "researcher start" in line]
        return line
    return None


def _frame_of_command(line: str) -> Charter:
    """The charter of the command in a line, as the command line reads it."""
    charter, answer = frame_command(shlex.split(line[line.index("researcher start") :]))
    assert charter is not None, answer
    return charter


@pytest.mark.parametrize("topic", [*_read("natural"), *_read("documented")])
def test_the_command_of_a_refusal_asks_in_flags_and_nothing_else(topic: dict[str, Any]) -> None:
    if (line := _refusal(topic["text"])) is None:
        return
    charter = _frame_of_command(line)

    assert charter.topic == topic["text"]
    known = {*topic["asks"], *topic.get("fixed", {}), "lr"}
    assert {factor.name for factor in charter.asks.factors} <= known or "in place of this example" in line
    arms = RulesPlanner().plan(charter, History()).arms
    assert {name for arm in arms for name in arm.factors} == {factor.name for factor in charter.asks.factors}


@pytest.mark.parametrize("text", REFUSED)
def test_the_command_of_a_refusal_runs_as_copied(text: str) -> None:
    line = _refusal(text)

    assert line is not None and _frame_of_command(line).topic == text


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Welche Lernrate trainiert reverse am besten?", "lr"),
        ("Wie viele Beispiele pro Gruppe?", "num_repeat"),
        ("half the batch", "batch_size"),
        ("Was meint meine Tante?", "lr"),
        ("rewards of the teacher, a or b", "lr"),
    ],
)
def test_a_refusal_without_a_known_setting_shows_the_usual_levels_of_the_nearest_as_an_example(
    text: str, name: str
) -> None:
    line = _refusal(text)

    assert line is not None and f"in place of this example, {SPECS[name].title}: " in line
    [factor] = _frame_of_command(line).asks.factors
    assert (factor.name, [level.factors[name] for level in factor.levels]) == (name, list(SPECS[name].usual))


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        ("64 -> 128", "--vary max_response_length=64,128"),
        ("group size 64 to 128", "--vary num_repeat=64,128"),
        ("lr 1e-3 or 3e-3 with KL", "--vary lr=0.001,0.003 --fix use_kl_loss=true"),
        ("lr 1e-3 or 3e-3, zzz, without KL", "--vary lr=0.001,0.003 --fix use_kl_loss=false"),
        ("GRPO or RLOO without dynamic sampling", "--vary algorithm=grpo,rloo --fix stop_rule=enough_tasks"),
        ("Is micro zzz worse than nano?", "--ask better --vary model=micro,nano --baseline model=micro"),
        ("lr 1e-3 or 3e-3, 10,100 steps", "--vary lr=0.001,0.003"),
        ("20 or 40 steps, zzz, 30 steps", "--vary total_steps=20,40"),
        ("temperature 0.9 or 1/3", "--vary temperature=0.9,0.7,1,1.3"),
        ("weight decay 0.1, 0.2 or no weight decay", "--vary weight_decay=0.1,0.2,0"),
        ("max tokens 128,256", "--vary max_response_length=128,256"),
        ("dapo or grpo with token-mean, zzz", "--vary algorithm=dapo,grpo"),
    ],
)
def test_the_command_of_a_refusal_has_the_values_of_the_topic(text: str, flags: str) -> None:
    line = _refusal(text)

    assert line is not None and f" --env reverse {flags}" in line
    assert _frame_of_command(line).topic == text


def test_the_command_of_a_refusal_keeps_the_flags_that_were_given() -> None:
    given = StudySettings(n_gpu=0, fix=("batch_size=8",), seeds=4, baseline=("lr=0.003",))
    with pytest.raises(TopicNotUnderstood) as refused:
        read_request("lr 1e-3 or zzz 3e-3", given)
    assert all(flag in str(refused.value) for flag in ("--fix batch_size=8", "--seeds 4", "--baseline lr=0.003"))


def test_documented_topics_are_answered() -> None:
    answered = 0
    for topic in _read("documented"):
        try:
            _frame(topic.values[0]["text"])
        except TopicNotUnderstood:
            continue
        answered += 1
    assert answered >= 28


@pytest.mark.parametrize(
    ("text", "fixed"),
    [
        ("lr 1e-3 or 3e-3 with KL coefficient 0.05", {"kl_loss_coef": 0.05, "use_kl_loss": True}),
        ("lr 1e-3 or 3e-3 with KL estimator k1", {"kl_loss_type": "k1", "use_kl_loss": True}),
        ("lr 1e-3 or 3e-3 with LoRA alpha 32", {"lora_alpha": 32, "lora_rank": 8}),
        ("lr 1e-3 or 3e-3 at min lr ratio 0.1", {"min_lr_ratio": 0.1, "lr_scheduler_type": "cosine"}),
        ("Does the KL coefficient matter on sort?", {"use_kl_loss": True}),
    ],
)
def test_a_topic_with_a_setting_that_nothing_would_read_is_refused_with_what_adds_it(
    text: str, fixed: dict[str, Any]
) -> None:
    with pytest.raises(SettingWithoutEffect, match="has no effect while"):
        _frame(text)
    line = _refusal(text)

    assert line is not None
    charter = _frame_of_command(line)
    assert charter.asks.fixed == {**fixed, "n_gpu": 0}
    assert all(arm.job[name] == value for arm in RulesPlanner().list_arms(charter) for name, value in fixed.items())


@pytest.mark.parametrize("text", ["AdamW vs Muon", "AdamW versus Muon on sort", "Muon or SGD"])
def test_optimizers_are_refused_without_a_command_that_asks_something_else(text: str) -> None:
    with pytest.raises(TopicNotUnderstood, match="every job trains with AdamW") as refused:
        _frame(text)
    assert "--vary" not in str(refused.value) and "Muon" in refused.value.parts


@pytest.mark.parametrize(
    ("text", "levels"),
    [
        ("GRPO/RLOO", ("grpo", "rloo")),
        ("GRPO/RLOO on sort", ("grpo", "rloo")),
        ("Is grpo/rloo/opo better?", ("grpo", "rloo", "opo")),
    ],
)
def test_names_with_a_stroke_between_them_are_levels(text: str, levels: tuple[str, ...]) -> None:
    [factor] = _frame(text).asks.factors
    assert tuple(level.factors["algorithm"] for level in factor.levels) == levels


@pytest.mark.parametrize("text", ["GRPO/Muon", "GRPO/0.001", "grpo/constant"])
def test_a_stroke_between_names_of_different_settings_is_refused(text: str) -> None:
    with pytest.raises(TopicNotUnderstood):
        _frame(text)


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("for 1,500 steps", 1500),
        ("with 2,250 training steps", 2250),
        (", 1,500 steps", 1500),
        ("for 2,000 steps", 2000),
    ],
)
def test_thousands_of_steps_may_have_a_comma(text: str, steps: int) -> None:
    charter = _frame(f"lr 1e-3 vs 3e-3 {text}")
    assert charter.asks.fixed["total_steps"] == steps and len(charter.asks.factors[0].levels) == 2


def test_numbers_that_may_be_two_levels_are_no_thousands() -> None:
    with pytest.raises(TopicNotUnderstood):
        _frame("batch size 1,500")


@pytest.mark.parametrize(
    "text",
    [
        "Are GRPO and RLOO equal within 0.05?",
        "Are GRPO and RLOO equivalent within 0.05 on sort?",
        "Is GRPO as good as RLOO within 0.05",
    ],
)
def test_what_follows_within_is_the_margin_of_equality(text: str) -> None:
    charter = _frame(text)
    assert (charter.asks.asked, charter.asks.margin) == (Asked.EQUAL, 0.05)


@pytest.mark.parametrize("text", ["Is GRPO better than RLOO within 0.05", "GRPO vs RLOO within 30 steps of each other"])
def test_within_is_refused_where_it_is_no_margin(text: str) -> None:
    with pytest.raises(TopicNotUnderstood):
        _frame(text)
