"""What tells a reader, without reading any table or record, that there is something new."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from store_samples import record_finding, record_score

from experiments_db import (
    Author,
    BudgetKind,
    Experiment,
    NoteKind,
    Outcome,
    RecordNotFound,
    Run,
    RunMean,
    RunStatus,
    RunSummary,
    Study,
    open_store,
)

Write = Callable[[Any, Study, Experiment, Run], object]


@pytest.fixture
def reader(location: str, store):
    with open_store(location, read_only=True) as opened:
        yield opened


@pytest.fixture
def arm(store, study: Study) -> Experiment:
    return store.create_experiment(study.id, "arm", factors={}, job={}, author=Author.PACKAGE)


@pytest.fixture
def run(store, arm: Experiment) -> Run:
    return store.claim_run(arm.id, 0, "first")


WRITES: dict[str, Write] = {
    "event": lambda store, study, arm, run: store.append_event(study.id, "kind", "message"),
    "arm": lambda store, study, arm, run: store.create_experiment(study.id, "other", factors={}, job={}),
    "run": lambda store, study, arm, run: store.update_run(run.id, status=RunStatus.LAUNCHING),
    "curve": lambda store, study, arm, run: store.record_metrics(run.id, {1: {"reward": 0.5}}),
    "score": lambda store, study, arm, run: record_score(store, run, "final", 0.5),
    "charter": lambda store, study, arm, run: store.freeze_charter(study.id, {"question": "Why?"}),
    "plan": lambda store, study, arm, run: store.record_plan(study.id, 0, {}),
    "analysis": lambda store, study, arm, run: store.record_analysis(study.id, 0, {}),
    "decision": lambda store, study, arm, run: store.record_decision(study.id, 0, action="stop", reason="done"),
    "finding": lambda store, study, arm, run: record_finding(store, study, arm),
    "note": lambda store, study, arm, run: store.write_note(
        study.id, "n", NoteKind.LESSON, "text", iteration=0, author="rules"
    ),
    "question": lambda store, study, arm, run: store.ask_planner(study.id, "decide", "Go on?"),
    "review": lambda store, study, arm, run: store.record_review(study.id, 0, arm.id, reviewer="r", objections=[]),
    "charge": lambda store, study, arm, run: store.charge_budget(study.id, BudgetKind.WALL_CLOCK_S, 61, "session"),
    "file": lambda store, study, arm, run: store.record_artifact(study.id, "log", "a", sha256="0" * 64, size_bytes=1),
    "settings": lambda store, study, arm, run: store.revise_settings(study.id, {"max_runs": 3}),
}


@pytest.mark.parametrize("kind", WRITES)
def test_each_write_gives_the_database_and_its_study_another_version(
    location: str, store, reader, study: Study, arm: Experiment, run: Run, kind: str
) -> None:
    before = reader.read_version(), reader.read_study_version(study.id)
    assert reader.read_study_version(study.id) == before[1]
    # PostgreSQL counts the writes to all databases of a server, and so those of tests beside this one.
    assert reader.read_version() == before[0] or location.startswith("postgresql")

    WRITES[kind](store, study, arm, run)

    assert reader.read_version() != before[0]
    assert reader.read_study_version(study.id) != before[1]


def test_what_is_changed_in_place_gives_a_study_another_version(store, reader, study: Study, arm: Experiment) -> None:
    hypothesis = store.create_hypothesis(study.id, "h", "It helps.")
    finding, question = record_finding(store, study, arm).id, store.ask_planner(study.id, "decide", "Go on?")
    review = store.record_review(study.id, 0, arm.id, reviewer="r", objections=[])
    changes: tuple[Callable[[], object], ...] = (
        lambda: store.judge_hypothesis(hypothesis.id, Outcome.SUPPORTED, "so"),
        lambda: store.judge_hypothesis(hypothesis.id, Outcome.SUPPORTED, "on more runs"),
        lambda: record_finding(store, study, arm, p_adjusted=0.05),
        lambda: store.retract_finding(finding, "wrong"),
        lambda: store.answer_question(question.id, "Stop."),
        lambda: store.close_question(question.id),
        lambda: store.respond_to_review(review.id, "True.", is_withdrawn=True),
    )
    for change in changes:
        before = reader.read_study_version(study.id)
        change()
        assert reader.read_study_version(study.id) != before


def test_a_study_keeps_its_version_while_another_is_written(store, reader, study: Study) -> None:
    other = store.create_study("Another topic", planner="rules")
    before = reader.read_study_version(study.id)
    store.append_event(other.id, "kind", "message")
    assert reader.read_study_version(study.id) == before
    with pytest.raises(RecordNotFound):
        reader.read_study_version("st-unknown")


def test_a_reader_is_given_runs_in_short_with_their_means(store, reader, study: Study, run: Run) -> None:
    record_score(store, run, "base", 0.25)
    record_score(store, run, "final", 0.5)
    found = reader.list_all_runs([study.id])
    assert [(item.id, item.status) for item in found.runs] == [(run.id, RunStatus.PLANNED)]
    assert type(found.runs[0]) is RunSummary and [item.name for item in found.experiments] == ["arm"]
    assert found.means == (RunMean(run.id, "base", "validation", 0.25), RunMean(run.id, "final", "validation", 0.5))
