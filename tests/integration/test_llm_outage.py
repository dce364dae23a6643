"""A study whose language model fails on the way: over real HTTP, with the loop, the fake engine and real programs."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from llm_replies.server import BROKEN_JSON, DROP, HANG, LEARNING_RATE, OTHER_JSON, PAGE, ReplyServer

from experiments_db import BudgetKind, ExperimentStore, RunStatus, StudyStatus
from researcher.errors import BudgetExceeded, LanguageModelRefused, LanguageModelUnavailable
from researcher.loop.session import work_on
from researcher.planner.conversation import backoff
from researcher.record.log import plan_from_json
from researcher.study.requests import ask_to_end, create_study
from researcher.study.settings import StudySettings

TOPIC = "learning rate 1e-3 or 1e-2 on reversal at equal steps"
KEY = "sk-canary-7d1e5b90a3c246f8"


@pytest.fixture
def model(tmp_path: Path) -> Iterator[ReplyServer]:
    """The recorded model, with a plan of two arms that need no program of their own."""
    folder = tmp_path / "replies"
    shutil.copytree(LEARNING_RATE, folder)
    whole = json.loads((folder / "plan.1.md").read_text().partition("</think>")[2])
    arms = [{"name": name, "settings": {"lr": lr}, "purpose": "r"} for name, lr in (("lr=0.001", 1e-3), ("hot", 0.01))]
    frame = json.loads((folder / "frame.1.md").read_text().strip("`json\n"))
    (folder / "frame.1.md").write_text(json.dumps({**frame, "vary": ["lr=1e-3,1e-2"]}))
    for number in (1, 2):
        (folder / f"plan.{number}.md").write_text(json.dumps({**whole, "arms": arms, "hypotheses": []}))
    with ReplyServer(folder) as server:
        yield server


@pytest.fixture
def begin(
    store: ExperimentStore, model: ReplyServer, monkeypatch: pytest.MonkeyPatch, start_server: Callable[..., Any]
) -> Callable[..., str]:
    """Creates a study of one run per arm; its pauses are hundredths of seconds."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_BASE_URL", model.url)
    monkeypatch.setattr(backoff, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(backoff, "LONGEST_PAUSE_S", 0.05)

    def create(topic: str = TOPIC, **changes: Any) -> str:
        settings: dict[str, Any] = {
            "planner": "llm", "model": "recorded-model", "engine": "fake", "steps": 1, "seeds": 1, "eval_episodes": 4,
            "unsafe_no_sandbox": True, "job": {"batch_size": 2, "num_repeat": 2}, "servers": [start_server().url],
        }  # fmt: skip
        return create_study(store, topic, StudySettings.model_validate({**settings, **changes})).id

    return create


def kinds(store: ExperimentStore, study_id: str) -> list[str]:
    return [event.kind for event in store.list_events(study_id, limit=None)]


def authors(store: ExperimentStore, study_id: str) -> tuple[list[str], list[str]]:
    plans = [plan_from_json(item.document).author for item in store.list_plans(study_id)]
    return plans, [str(item.details["author"]) for item in store.list_decisions(study_id)]


def test_study_waits_through_failures_of_every_sort_and_finishes(store, model, begin, tmp_path):
    model.failures = [503, DROP, 429, PAGE, BROKEN_JSON, OTHER_JSON, 500]
    study_id = begin()

    assert work_on(store, study_id, tmp_path).study.status is StudyStatus.FINISHED

    seen = kinds(store, study_id)
    assert seen.count("llm.waiting") == 7 and seen.count("llm.answering") == 1
    assert store.sum_llm_usage(study_id).failed_calls >= 7
    assert {run.status for run in store.list_runs(study_id=study_id)} == {RunStatus.FINISHED}
    assert authors(store, study_id) == (["llm:recorded-model"], ["llm:recorded-model"])
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.name == "report.html" for path in files)
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []


def test_answers_that_no_repair_mends_are_an_outage_too(store, model, begin, tmp_path):
    folder = tmp_path / "replies"
    good = (folder / "frame.1.md").read_text()
    for number, text in enumerate(["I cannot say.", "[]", "{}", good], 1):
        (folder / f"frame.{number}.md").write_text(text)
    model.down = {"plan"}
    study_id = begin(llm_patience=0.005)

    with pytest.raises(LanguageModelUnavailable, match="plan: no answer: HTTP 503"):
        work_on(store, study_id, tmp_path)

    assert store.find_charter(study_id) is not None
    first = next(event for event in store.list_events(study_id) if event.kind == "llm.waiting")
    assert "3 answers that cannot be used" in first.message


@pytest.mark.slow
def test_model_that_stays_away_pauses_the_study_and_resume_goes_on(store, model, begin, tmp_path):
    model.down = {"decide"}
    study_id = begin(llm_patience=0)

    with pytest.raises(LanguageModelUnavailable) as outage:
        work_on(store, study_id, tmp_path)

    paused = store.get_study(study_id)
    assert outage.value.exit_code == 10
    assert paused.status is StudyStatus.PAUSED and "decide: no answer: HTTP 503" in (paused.status_reason or "")
    assert store.list_decisions(study_id) == []
    runs = store.list_runs(study_id=study_id)

    model.down = set()
    assert work_on(store, study_id, tmp_path).study.status is StudyStatus.FINISHED
    assert store.list_runs(study_id=study_id) == runs
    assert authors(store, study_id) == (["llm:recorded-model"], ["llm:recorded-model"])


def test_topic_that_rules_cannot_read_is_not_studied_by_them(store, begin, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    study_id = begin("Does a curriculum of riddles in Latin help?", planner="hybrid", llm_patience=0)

    with pytest.raises(LanguageModelUnavailable):
        work_on(store, study_id, tmp_path)

    assert store.get_study(study_id).status is StudyStatus.PAUSED
    assert "rules.unable" in kinds(store, study_id)


def test_request_to_pause_is_heard_while_the_study_waits_for_the_model(store, model, begin, tmp_path, monkeypatch):
    model.failures = [503, HANG] * 5_000
    study_id = begin()
    # Until the request is heard the model is asked a few times, not hundreds.
    monkeypatch.setattr(backoff, "LONGEST_PAUSE_S", 2.0)
    worker = threading.Thread(target=work_on, args=(store, study_id, tmp_path))
    worker.start()
    deadline = time.monotonic() + 60
    while not model.requests:
        assert time.monotonic() < deadline
        time.sleep(0.05)

    ask_to_end(store, study_id, StudyStatus.PAUSED)
    worker.join(60)

    assert not worker.is_alive()
    assert store.get_study(study_id).status is StudyStatus.PAUSED


@pytest.mark.slow
def test_refused_key_fails_at_once_and_the_study_goes_on_with_a_right_one(store, model, begin, tmp_path):
    model.failures = [401]
    study_id = begin()

    with pytest.raises(LanguageModelRefused, match=r"refused: HTTP 401.*OPENAI_API_KEY"):
        work_on(store, study_id, tmp_path)

    assert store.get_study(study_id).status is StudyStatus.FAILED
    assert len(model.requests) == 1
    assert work_on(store, study_id, tmp_path).study.status is StudyStatus.FINISHED


@pytest.mark.slow
def test_spent_tokens_pause_a_study_and_more_of_them_carry_it_on(store, begin, tmp_path):
    study_id = begin(max_llm_tokens=12_000)

    with pytest.raises(BudgetExceeded, match="--max-llm-tokens"):
        work_on(store, study_id, tmp_path)

    assert store.get_study(study_id).status is StudyStatus.PAUSED
    assert store.sum_budget(study_id)[BudgetKind.LLM_TOKENS] <= 12_000
    outcome = work_on(store, study_id, tmp_path, budget={"max_llm_tokens": 1_000_000})
    assert outcome.study.status is StudyStatus.FINISHED
    assert authors(store, study_id) == (["llm:recorded-model"], ["llm:recorded-model"])


@pytest.mark.slow
def test_hybrid_goes_on_with_rules_when_money_is_spent(store, begin, tmp_path):
    study_id = begin(planner="hybrid", max_llm_usd=0.0001, llm_price=(5.0, 20.0))

    assert work_on(store, study_id, tmp_path).study.status is StudyStatus.FINISHED

    assert authors(store, study_id) == (["rules"], ["rules"])
    assert store.sum_budget(study_id)[BudgetKind.COST_USD] <= 0.0001
