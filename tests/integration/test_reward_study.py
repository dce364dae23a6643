"""A study of rewards in which a planner also writes an agent, replayed from recorded answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from recorded_answers import RecordedAnswers, arm

import researcher.loop.session as session_module
from experiments_db import ExperimentStatus, ExperimentStore, StudyStatus
from researcher.loop.session import work_on
from researcher.planner.llm import LLMPlanner, StoredArms
from researcher.study.requests import create_study
from researcher.study.settings import StudySettings
from researcher.study.topics import complete_from_topic

PARTIAL = """
def reward(task, transcript, grade):
    said, wanted = transcript[-1]["content"] or "", sorted(task.main_query.split()[-1])
    return 0.5 * grade.score + 0.5 * sum(a == b for a, b in zip(said, wanted)) / len(wanted)
"""
SHORT = """
def reward(task, transcript, grade):
    return grade.score - 0.001 * len(transcript[-1]["content"] or "")
"""
SORTS_IN_CODE = """
def agent(task, model, session):
    letters = "".join(sorted(task.main_query.split()[-1]))
    return model.chat([{"role": "user", "content": f"Reverse: {letters[::-1]}"}])
"""
"""The arm that once won a study of rewards: code sorts the letters, and the model writes them backwards."""
STILL = SORTS_IN_CODE + "\n\ndef reward(task, transcript, grade):\n    return grade.score\n"


def fenced(code: str) -> str:
    return f"```python{code}```"


def test_an_agent_in_a_study_of_rewards_is_refused_by_name_and_the_reward_arms_get_verdicts(
    store: ExperimentStore, start_server: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = "A reward for sorting letters"
    given = {"engine": "fake", "steps": 1, "seeds": 3, "eval_episodes": 6, "job": {"batch_size": 2, "num_repeat": 2}}
    settings = StudySettings(
        planner="llm", model="recorded", unsafe_no_sandbox=True, servers=(start_server().url,), **given
    )
    study = create_study(store, topic, complete_from_topic(topic, settings))
    names = ["plain", "partial credit", "short answers", "sorts first"]
    answers = RecordedAnswers(
        frame=[{"question": "Which reward trains sorting best?", "family": "sort", "ask": "best", "programs": names}],
        plan=[
            {
                "rationale": "Two rewards, and a simpler task for the model.",
                "arms": [arm(name, "draft", program=name) for name in names[1:]],
                "seeds": 3,
            }
        ],
        write_program=[fenced(PARTIAL), fenced(SHORT), fenced(SORTS_IN_CODE)],
        repair_program=[fenced(STILL), fenced(STILL)],
        interpret=[{"claims": [{"claim": "opinion", "text": "Neither reward helps."}]}],
        decide=[{"action": "stop", "reason": "The arms are compared."}],
    )
    planner = LLMPlanner(answers, records=StoredArms(store, study.id))
    monkeypatch.setattr(session_module, "_build_planner", lambda *_: planner)

    outcome = work_on(store, study.id, tmp_path)

    assert outcome.study.status is StudyStatus.FINISHED
    arms = {each.name: each for each in store.list_experiments(study.id)}
    refused = arms.pop("sorts first")
    assert refused.status is ExperimentStatus.INVALID and store.list_runs(experiment_id=refused.id) == []
    assert "its agent is not the baseline's" in refused.note and "reward alone" in refused.note
    assert {each.status for each in arms.values()} == {ExperimentStatus.READY}
    found = store.list_analyses(study.id)[-1].document
    judged = {each["arm"]: each for each in found["comparisons"]}
    assert all(len(judged[name]["seeds"]) == 3 and judged[name]["verdict"] for name in names[1:3])
    assert not judged["sorts first"]["seeds"]
    asked = {node: [text for kind, text in answers.asked if kind == node] for node, _ in answers.asked}
    for node in ("plan", "write_program", "decide"):
        assert all("may differ in: reward. " in text for text in asked[node]), node
    assert all("reward alone" in text and "leave the function agent out" in text for text in asked["repair_program"])
    report = next(path for path in tmp_path.rglob("report.md"))
    assert "sorts first" in (text := report.read_text()) and "reward alone" in text
