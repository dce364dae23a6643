"""A study that ends has a digest of its rows, so that what is changed past the store afterwards shows."""

from __future__ import annotations

import re

import pytest
from store_samples import record_finding

from experiments_db import (
    BudgetKind,
    Experiment,
    RecordNotFound,
    Run,
    RunStatus,
    Study,
    StudyStatus,
)


def _execute(location: str, statement: str) -> None:
    from sqlalchemy import create_engine, text

    url = location if "://" in location else f"sqlite:///{location}"
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        assert connection.execute(text(statement)).rowcount > 0
    engine.dispose()


@pytest.fixture
def ended(store, study: Study, experiment: Experiment, run: Run) -> Study:
    store.update_run(run.id, status=RunStatus.LAUNCHING)
    store.record_metrics(run.id, {1: {"a": 0.5, "b": float("nan")}, 2: {"a": 0.25}})
    store.append_event(study.id, "run.training", "it trains", run_id=run.id)
    store.charge_budget(study.id, BudgetKind.RUNS, 1, "lr=1e-3/1")
    for baseline in (None, experiment.id):
        record_finding(store, study, experiment, baseline_id=baseline, run_ids=[run.id])
    return store.set_study_status(study.id, StudyStatus.FINISHED)


def _differences(store, study: Study) -> dict[str, str]:
    stored = store.find_digest(study.id)
    assert stored is not None
    return stored.compare(store.compute_digest(study.id))


@pytest.mark.parametrize("status", [StudyStatus.FINISHED, StudyStatus.FAILED])
def test_study_has_a_digest_from_its_end_until_it_goes_on(store, study: Study, run: Run, status: StudyStatus) -> None:
    assert store.find_digest(study.id) is None
    store.set_study_status(study.id, status)
    first = store.find_digest(study.id)
    assert first is not None and first.tables["runs"].rows == 1

    store.set_study_status(study.id, StudyStatus.RUNNING)
    assert store.find_digest(study.id) is None
    store.append_event(study.id, "run.training", "it trains again")
    store.set_study_status(study.id, status)
    second = store.find_digest(study.id)
    assert second is not None and second.sha256 != first.sha256
    assert [name for name in first.tables if first.tables[name] != second.tables[name]] == ["events"]


def test_rows_that_were_left_alone_have_the_same_digest(store, ended: Study) -> None:
    stored = store.find_digest(ended.id)
    assert stored is not None
    assert store.compute_digest(ended.id).sha256 == stored.sha256


@pytest.mark.parametrize(
    ("statement", "table", "counts"),
    [
        ("UPDATE runs SET seed = 7", "runs", "1"),
        ("UPDATE metric_points SET value = 0.9 WHERE step = 2", "metric_points", "3"),
        ("DELETE FROM findings WHERE baseline_id IS NULL", "findings", "1 2"),
        (
            "INSERT INTO metric_points (run_id, name, step, value, recorded_at) SELECT id, 'a', 3, 1.0, 2.0 FROM runs",
            "metric_points",
            "4 3",
        ),
        ("UPDATE events SET message = 'another'", "events", "1"),
        ("DELETE FROM events", "events", "0 1"),
        ("UPDATE studies SET topic = 'another'", "studies", "1"),
    ],
)
def test_table_with_changed_missing_or_added_rows_is_named_with_their_number(
    store, ended: Study, location: str, statement: str, table: str, counts: str
) -> None:
    _execute(location, statement)
    found = _differences(store, ended)
    assert list(found) == [table]
    assert re.findall(r"\d+", found[table]) == counts.split()


def test_what_the_process_of_a_study_writes_after_its_end_is_no_change(store, ended: Study, run: Run) -> None:
    store.append_event(ended.id, "study.finished", "it is finished")
    store.charge_budget(ended.id, BudgetKind.WALL_CLOCK_S, 60.0, "this process")
    store.record_artifact(ended.id, "report.markdown", "report.md", sha256="0" * 64, size_bytes=1)
    store.update_run(run.id, external_ids={"pruned": ["step-1"]})
    assert _differences(store, ended) == {}


def test_another_study_has_a_digest_of_its_own(store, ended: Study, location: str) -> None:
    other = store.create_study("another", planner="rules")
    store.set_study_status(other.id, StudyStatus.FINISHED)
    _execute(location, f"UPDATE studies SET topic = 'changed' WHERE id = '{other.id}'")
    assert _differences(store, ended) == {}
    assert len(_differences(store, other)) == 1


def test_unknown_study_has_no_digest(store) -> None:
    for ask in (store.find_digest, store.compute_digest):
        with pytest.raises(RecordNotFound):
            ask("st-nobody")
