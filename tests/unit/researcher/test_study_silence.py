"""A study whose process is gone says so, wherever it is shown."""

from __future__ import annotations

import io
import json
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from experiments_db import ExperimentStore, Lease, Study, StudyStatus, StudyWork, judge_work, lease_name, open_store
from experiments_db.study_work import BEGIN_WITHIN_S
from researcher.cli import app
from researcher.record.lease import TTL_S
from researcher.study.overview import take_snapshot
from researcher.study.progress import render

NOW = 1_000_000.0
STUDY = Study("st-1", "t", "rules", StudyStatus.RUNNING, None, {}, NOW - 5000, NOW - 4000, None)
DEAD = f"{socket.gethostname()}:0:1"
"""No process has the number 0."""


def lease(age_s: float) -> Lease:
    return Lease(lease_name("st-1"), "elsewhere:1:1", 1, TTL_S, NOW - 5000, NOW - age_s)


@pytest.mark.parametrize(
    ("study", "held", "expected"),
    [
        (STUDY, lease(3), StudyWork(True)),
        (STUDY, lease(TTL_S + 1), StudyWork(False, NOW - TTL_S - 1)),
        (STUDY, None, StudyWork(False, NOW - 4000)),
        (replace(STUDY, updated_at=NOW - BEGIN_WITHIN_S / 2), None, StudyWork(True)),
        # One that was asked to pause still writes its report.
        (replace(STUDY, status=StudyStatus.PAUSED), lease(3), StudyWork(True)),
        (replace(STUDY, status=StudyStatus.PAUSED), lease(TTL_S + 1), StudyWork(False)),
        (replace(STUDY, status=StudyStatus.FINISHED), None, StudyWork(False)),
    ],
)
def test_who_works_follows_from_status_and_lease(study: Study, held: Lease | None, expected: StudyWork) -> None:
    assert judge_work(study, held, NOW) == expected


def test_a_process_that_is_known_to_be_gone_works_on_nothing_whatever_its_lease_says() -> None:
    assert judge_work(STUDY, lease(3), NOW, is_gone=lambda owner: True) == StudyWork(False, NOW - 3)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("SWARM_HOME", raising=False)
    return tmp_path / "my runs"


@pytest.fixture
def store(home: Path) -> Iterator[ExperimentStore]:
    with open_store(home / "research.db") as store:
        yield store


def test_status_list_and_watch_say_that_a_killed_study_has_no_process_and_what_goes_on(
    store: ExperimentStore, home: Path
) -> None:
    study = store.create_study("batch size 2 or 3", planner="rules")
    store.acquire_lease(lease_name(study.id), DEAD, TTL_S)
    command = f"researcher resume {study.id} --home '{home}'"

    for word, code in (("status", 0), ("list", 0), ("watch", 1)):
        done = CliRunner().invoke(app, [word, "--home", str(home)])
        assert done.exit_code == code, done.output
        assert "no process works on it: the last sign of life was" in " ".join(done.output.split())
        assert command in done.output
    shown = json.loads(CliRunner().invoke(app, ["status", "--home", str(home), "--json"]).stdout)
    listed = json.loads(CliRunner().invoke(app, ["list", "--home", str(home), "--json"]).stdout)
    assert shown["resume"] == command and shown["seconds_left"] is None
    for work in (shown["work"], listed[0]["work"]):
        assert work["is_at_work"] is False and work["silent_since"] <= time.time()


def test_the_command_that_goes_on_names_a_database_that_lies_elsewhere(store: ExperimentStore, home: Path) -> None:
    study = store.create_study("batch size 2 or 3", planner="rules")
    store.set_study_status(study.id, StudyStatus.PAUSED)

    done = CliRunner().invoke(app, ["status", "--db", str(home / "research.db"), "--home", "other"])

    assert f"go on with: researcher resume {study.id} --home other --db '{home}/research.db'" in done.output


def test_why_a_study_failed_stands_above_its_runs(store: ExperimentStore) -> None:
    study = store.create_study("batch size 2 or 3", planner="rules")
    store.set_study_status(study.id, StudyStatus.FAILED, "no arm has a score")
    console = Console(file=io.StringIO(), width=160, no_color=True)

    console.print(render(take_snapshot(store, study.id)))

    assert "no arm has a score" in console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
