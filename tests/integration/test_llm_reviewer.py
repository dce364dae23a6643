"""A reviewer with a language model over HTTP: what it is shown, what it may answer, and the flag that asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from llm_replies.server import ReplyServer

from experiments_db import ExperimentStore, Operator
from researcher.charter import Budget, Charter, StudyKind
from researcher.errors import TopicInvalid
from researcher.execution.background import BackgroundTasks
from researcher.execution.environments import StudyEnvironments
from researcher.history import Objection, ObjectionKind
from researcher.loop.settings_check import check_study
from researcher.planner.rules import RulesPlanner
from researcher.planner.tools.base import Toolbox
from researcher.record.budget import BudgetLedger
from researcher.record.log import StudyLog
from researcher.reviewer.build import Reviewer, build_reviewer
from researcher.study.settings import StudySettings, read_settings
from researcher.study.topics import read_request

GAMED = "def reward(task, transcript, grade):\n    return len(transcript[-1]['content'])\n"
UNUSABLE = '{"objections": [{"kind": "ugly", "sentence": "It is not nice."}]}'
ANSWER = """The reward is about length.

{"objections": [{"kind": "gamed_reward", "sentence": "Line 2 pays for length alone.", "is_grave": true},
 {"kind": "other", "sentence": "It has no agent of its own."}]}
"""
SEARCH = StudySettings(kind=StudyKind.OPTIMIZE, reviewer="recorded-model", llm_patience=0)


@pytest.fixture
def replies(tmp_path: Path) -> Iterator[ReplyServer]:
    folder = tmp_path / "replies"
    folder.mkdir()
    for number, text in enumerate((UNUSABLE, ANSWER), 1):
        (folder / f"review.{number}.md").write_text(text)
    with ReplyServer(folder) as server:
        yield server


@pytest.fixture
def charter() -> Charter:
    return RulesPlanner().frame(read_request("learning rate 1e-3 or 3e-3 for word reversal", read_settings({})))


def build(store: ExperimentStore, folder: Path, settings: StudySettings) -> tuple[str, Reviewer | None]:
    study = store.create_study("t", planner="rules").id
    reviewer = build_reviewer(
        settings,
        StudyLog(store, study),
        BudgetLedger(store, study, Budget()),
        BackgroundTasks(1),
        open_environment=StudyEnvironments().open,
        folder=folder,
        sandbox=None,
        toolbox=Toolbox(()),
    )
    return study, reviewer


def test_model_sees_program_difference_and_attempts_and_its_objections_are_read(
    store: ExperimentStore, tmp_path: Path, replies: ReplyServer, charter: Charter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", replies.url)
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    study, reviewer = build(store, tmp_path, SEARCH)
    assert reviewer is not None and reviewer.name == "llm:recorded-model"
    parent = store.create_experiment(study, "baseline", factors={}, job={"lr": 0.001}, program_code="# plain\n")
    arm = store.create_experiment(
        study, "long", factors={}, job={"lr": 0.003}, program_code=GAMED, parent_id=parent.id,
        operator=Operator.IMPROVE, purpose="Longer thoughts help.",
    )  # fmt: skip
    attempt = {"task": "t", "messages": [{"role": "assistant", "content": "blah blah"}], "score": 0.0, "error": None}
    store.record_program_trial(
        study, code_digest="d", attempts=1, broken=0, seconds=1.0, experiment_id=arm.id, transcripts=[attempt]
    )

    assert reviewer.review(charter, "long") == (
        Objection(ObjectionKind.GAMED_REWARD, "Line 2 pays for length alone.", is_grave=True),
        Objection(ObjectionKind.OTHER, "It has no agent of its own.", is_grave=False),
    )
    asked = replies.requests[0]["messages"][-1]["content"]
    for shown in (GAMED, "Longer thoughts help.", "lr: 0.001 -> 0.003", "-# plain", "blah blah", charter.question):
        assert shown in asked
    # The answer with a kind that does not exist was sent back, and both calls are on record.
    assert [call.node for call in store.list_llm_calls(study)] == ["review", "review"]


@pytest.mark.parametrize(
    ("kind", "wanted", "name"),
    [
        (StudyKind.OPTIMIZE, None, "rules"),
        (StudyKind.OPTIMIZE, "none", None),
        (StudyKind.OPTIMIZE, "rules", "rules"),
    ],
)
def test_reviewer_of_a_search_is_the_rules_unless_a_person_says_otherwise(
    store: ExperimentStore, tmp_path: Path, kind: StudyKind, wanted: str | None, name: str | None
) -> None:
    _, reviewer = build(store, tmp_path, StudySettings(kind=kind, reviewer=wanted))
    assert (None if reviewer is None else reviewer.name) == name


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (StudySettings(vary=("lr=0.001,0.003",), reviewer="rules", engine="fake"), "--kind optimize"),
        (StudySettings(kind=StudyKind.OPTIMIZE, reviewer="some-model", engine="fake"), "OPENAI_API_KEY"),
    ],
)
def test_reviewer_that_cannot_review_is_refused_before_the_study_begins(
    settings: StudySettings, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(TopicInvalid, match=reason):
        check_study("find the best settings for copying", settings)
