"""A study whose disk is full, or whose database is locked, for a while: it rests and goes on by itself."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from simulated_study import reports_without_images
from waiting import locked, wait_until

from experiments_db import ExperimentStore, RunStatus, StoreUnavailable, StudyStatus, engine, open_store
from researcher.execution import storage
from researcher.loop.session import work_on
from researcher.study.requests import create_study
from researcher.study.settings import StudySettings

TOPIC = "batch size 2 or 3 for tool use at equal steps"
PATIENCE_S = 200
pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ExperimentStore]:
    """Its writers give up after a moment, and try again after another."""
    monkeypatch.setattr(engine, "BUSY_TIMEOUT_S", 0.1)
    monkeypatch.setattr(storage, "FIRST_PAUSE_S", 0.05)
    monkeypatch.setattr(storage, "LONGEST_PAUSE_S", 0.2)
    with reports_without_images(), open_store(tmp_path / "research.db") as opened:
        yield opened


def kinds(store: ExperimentStore, study_id: str) -> list[str]:
    return [event.kind for event in store.list_events(study_id, limit=None)]


@pytest.fixture
def study_id(store: ExperimentStore, start_server: Callable[..., Any]) -> str:
    settings = {"engine": "fake", "steps": 3, "seeds": 1, "eval_episodes": 4, "servers": [start_server().url]}
    return create_study(store, TOPIC, StudySettings.model_validate(settings)).id


def test_study_rests_while_its_database_is_locked_and_begins_no_run_twice(store, study_id, tmp_path, caplog):
    outcome: list[Any] = []
    worker = threading.Thread(target=lambda: outcome.append(work_on(store, study_id, tmp_path)))
    worker.start()
    wait_until(lambda: "run.training" in kinds(store, study_id))
    with locked(tmp_path / "research.db"):
        wait_until(lambda: "waits until it can be stored" in caplog.text)
        assert store.get_study(study_id).status is StudyStatus.RUNNING
    worker.join(PATIENCE_S)

    assert outcome and outcome[0].study.status is StudyStatus.FINISHED
    assert "store.waiting" in kinds(store, study_id)
    runs = store.list_runs(study_id=study_id)
    assert [(run.attempt, run.status) for run in runs] == [(1, RunStatus.FINISHED)] * 2


def test_resume_waits_for_a_database_that_is_locked(tmp_path: Path) -> None:
    with open_store(tmp_path / "research.db") as store:
        study = create_study(store, TOPIC, StudySettings(engine="fake"))
        store.set_study_status(study.id, StudyStatus.RUNNING)
        store.set_study_status(study.id, StudyStatus.FINISHED, "the report is written")
    script = "from experiments_db import engine; engine.BUSY_TIMEOUT_S = 0.1; import researcher.cli as c; c.main()"
    words = [sys.executable, "-c", script, "resume", study.id, "--home", str(tmp_path)]
    with locked(tmp_path / "research.db"):
        resumed = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert resumed.stderr is not None
        line = resumed.stderr.readline()
        assert "waits until it can be stored" in line
        assert resumed.poll() is None
    _, errors = resumed.communicate(timeout=PATIENCE_S)
    assert "is finished already" in errors


def test_what_may_pass_is_told_from_what_may_not(store: ExperimentStore, study_id: str, tmp_path: Path) -> None:
    with locked(tmp_path / "research.db"), pytest.raises(StoreUnavailable) as busy:
        store.append_event(study_id, "any", "text")
    assert busy.value.may_pass and storage.is_storage_outage(busy.value)
    assert storage.is_storage_outage(OSError(28, "No space left on device"))
    assert not storage.is_storage_outage(OSError(13, "Permission denied"))
    assert not storage.is_storage_outage(StoreUnavailable("the file is damaged"))
