"""What a topic says of machines, budgets and environments becomes settings of the study, unless flags say otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from researcher.errors import TopicNotUnderstood
from researcher.planner.rules import RulesPlanner
from researcher.study.settings import StudySettings, complete_from_topic
from researcher.types import FrameRequest, History

ELSEWHERE = ("http://127.0.0.1:9",)


def test_budgets_of_the_topic_are_those_of_the_study() -> None:
    settings = complete_from_topic("lr on sorting within 2 hours and at most 30 runs", StudySettings())

    assert (settings.max_hours, settings.max_runs) == (2, 30)
    fixed = complete_from_topic("lr on sorting within 2 hours", StudySettings(max_hours=1))
    assert fixed.max_hours == 1


def test_gpus_of_the_topic_are_asked_of_servers_elsewhere() -> None:
    settings = complete_from_topic("GRPO or RLOO on sorting with 8 GPUs", StudySettings(servers=ELSEWHERE))

    assert (settings.n_gpu, settings.engine) == (8, "auto")
    fixed = complete_from_topic("lr on sorting with 8 GPUs", StudySettings(servers=ELSEWHERE, n_gpu=2))
    assert fixed.n_gpu == 2


@pytest.mark.parametrize("here", [0, 1, 7])
def test_more_gpus_than_there_are_are_refused_by_name(here: int) -> None:
    with pytest.raises(TopicNotUnderstood) as refusal:
        RulesPlanner(gpus=here).frame(FrameRequest("lr on sorting with 8 GPUs"))

    assert refusal.value.parts == ("8 GPUs",) and f"there are {here} GPUs here" in str(refusal.value)


def test_as_many_gpus_as_there_are_are_understood() -> None:
    assert RulesPlanner(gpus=8).frame(FrameRequest("lr on sorting with 8 GPUs")).not_studied == ()


def test_environment_of_the_topic_is_that_of_the_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tasks.jsonl").write_text("")

    by_reference = complete_from_topic("lr on reasoning_gym:chain_sum?", StudySettings())
    by_path = complete_from_topic("lr on ./tasks.jsonl", StudySettings())
    by_flag = complete_from_topic("lr on ./tasks.jsonl", StudySettings(task="sort"))

    assert by_reference.env == "reasoning_gym:chain_sum"
    # In full: the study may be taken up from another directory.
    assert by_path.env == str(tmp_path / "tasks.jsonl")
    assert (by_flag.task, by_flag.env) == ("sort", None)


def test_language_model_reads_its_topic_itself() -> None:
    settings = StudySettings(brain="llm", model="any")

    assert complete_from_topic("lr on sorting within 2 hours", settings) == settings


def test_limit_of_a_reply_that_own_programs_decide_is_refused_or_left_out() -> None:
    planner = RulesPlanner(programs={"plain": "a", "other": "b"}, gpus=0)
    topic = "Do shorter answers or lr 1e-3 or 1e-2 matter on sorting?"

    with pytest.raises(TopicNotUnderstood, match="compare two of them with --program"):
        planner.frame(FrameRequest(topic))
    charter = planner.frame(FrameRequest(topic, assume=True))

    assert charter.not_studied == ("max_response_length",)
    assert {name for arm in planner.plan(charter, History()).arms for name in arm.factors} == {"program", "lr"}
