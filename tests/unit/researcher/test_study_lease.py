"""One process at a time works on a study; a dead one is replaced at once and cannot write any more."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from experiments_db import ExperimentStore, StoreLeaseLost, StudyStatus, open_store
from researcher.cli import app
from researcher.errors import StudyBusy
from researcher.record.lease import TTL_S, StudyLease
from swarm.processes.child import process_start


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ExperimentStore]:
    with open_store(tmp_path / "research.db") as store:
        yield store


def _nothing() -> None:
    pass


def test_living_owner_keeps_others_out(store: ExperimentStore) -> None:
    store.acquire_lease("study:s", "elsewhere:1:1", TTL_S)

    with pytest.raises(StudyBusy, match="elsewhere"):
        StudyLease(store, "s", on_beat=_nothing, on_lost=_nothing)


def test_second_researcher_is_told_who_works_on_the_study(store: ExperimentStore, tmp_path: Path) -> None:
    study = store.create_study("batch size 2 or 3", planner="rules")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as living:
        owner = f"{socket.gethostname()}:{living.pid}:{process_start(living.pid)}"
        store.acquire_lease(f"study:{study.id}", owner, TTL_S)

        second = CliRunner().invoke(app, ["resume", study.id, "--home", str(tmp_path)])

    assert second.exit_code == StudyBusy.exit_code == 75
    assert f"is at work on study:{study.id}" in second.stderr


def test_dead_owner_is_replaced_at_once_and_locked_out(store: ExperimentStore) -> None:
    study = store.create_study("t", planner="rules")
    # No process has the number 0.
    dead = store.acquire_lease(f"study:{study.id}", f"{socket.gethostname()}:0:1", TTL_S)

    with StudyLease(store, study.id, on_beat=_nothing, on_lost=_nothing) as study_lease:
        study_lease.store.set_study_status(study.id, StudyStatus.PAUSED)
        with pytest.raises(StoreLeaseLost):
            store.under(dead).set_study_status(study.id, StudyStatus.FAILED)

    assert store.get_study(study.id).status is StudyStatus.PAUSED
    assert store.find_lease(f"study:{study.id}") is None


def test_loss_of_the_lease_is_noticed_at_the_next_heartbeat(store: ExperimentStore) -> None:
    beats, lost = threading.Event(), threading.Event()
    with StudyLease(store, "s", on_beat=beats.set, on_lost=lost.set, heartbeat_s=0.05):
        assert beats.wait(10)
        lease = store.find_lease("study:s")
        assert lease is not None
        store.release_lease(lease)
        store.acquire_lease("study:s", "elsewhere:1:1", TTL_S)

        assert lost.wait(10)
