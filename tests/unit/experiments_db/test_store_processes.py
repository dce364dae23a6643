"""Several processes and threads on one database, and processes that die in the middle of a write."""

import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from experiments_db import Experiment, Run, StoreUnavailable, Study, open_store

TIMEOUT_S = 60

WRITE_EVENTS = """
import sys
from experiments_db import open_store
location, study_id, name, count = sys.argv[1:]
with open_store(location) as store:
    for number in range(int(count)):
        store.append_event(study_id, name, str(number))
"""

WRITE_METRICS_FOREVER = """
import sys
from experiments_db import open_store
location, run_id = sys.argv[1:]
store = open_store(location)
step = 0
while True:
    store.record_metrics(run_id, {step: {"a": step, "b": step, "c": step}})
    print(step, flush=True)
    step += 1
"""

CREATE = """
import sys
from experiments_db import open_store
with open_store(sys.argv[1]) as store:
    store.create_study("t", planner="rules")
"""

HOLD_LOCK = """
import sys, time
from experiments_db.engine import connect
database = connect(sys.argv[1], read_only=False)
with database.write():
    print("locked", flush=True)
    time.sleep(60)
"""

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start():
    processes: list[subprocess.Popen[str]] = []

    def start_script(script: str, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", script, *arguments]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        processes.append(process)
        return process

    yield start_script
    for process in processes:
        process.kill()
        process.communicate(timeout=TIMEOUT_S)


def test_processes_that_write_at_once_lose_nothing(store, study: Study, location: str, start: Start) -> None:
    writers = [start(WRITE_EVENTS, location, study.id, name, "100") for name in ("one", "two")]
    for number in range(50):
        store.append_event(study.id, "here", str(number))
    assert [writer.wait(TIMEOUT_S) for writer in writers] == [0, 0]
    for name, count in (("one", 100), ("two", 100), ("here", 50)):
        messages = [event.message for event in store.list_events(study.id, limit=None) if event.kind == name]
        assert messages == [str(number) for number in range(count)]


def test_processes_that_create_the_database_at_once_all_succeed(location: str, start: Start) -> None:
    creators = [start(CREATE, location) for _ in range(3)]
    assert [creator.wait(TIMEOUT_S) for creator in creators] == [0] * 3
    with open_store(location, read_only=True) as store:
        assert len(store.list_studies()) == 3


def test_killed_writer_leaves_whole_transactions_and_all_it_acknowledged(
    store, run: Run, location: str, start: Start
) -> None:
    writer = start(WRITE_METRICS_FOREVER, location, run.id)
    assert writer.stdout is not None
    acknowledged = [int(writer.stdout.readline()) for _ in range(30)]
    writer.send_signal(signal.SIGKILL)
    writer.wait(TIMEOUT_S)
    acknowledged += [int(line) for line in writer.stdout.read().split()]
    points = store.list_metrics([run.id])
    steps = {name: [point.step for point in points if point.name == name] for name in ("a", "b", "c")}
    assert steps["a"] == steps["b"] == steps["c"]
    assert set(acknowledged) <= set(steps["a"])
    store.record_metrics(run.id, {0: {"a": -1.0}})
    if not location.startswith("postgresql"):
        connection = sqlite3.connect(location)
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        connection.close()


def test_writer_that_waits_too_long_is_told_so(tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "research.db")
    with open_store(path) as store:
        study = store.create_study("t", planner="rules")
        holder = start(HOLD_LOCK, path)
        assert holder.stdout is not None and holder.stdout.readline() == "locked\n"
        monkeypatch.setattr("experiments_db.engine.BUSY_TIMEOUT_S", 0.2)
        with pytest.raises(StoreUnavailable, match="another process has been writing"):
            store.append_event(study.id, "x", "y")
        assert store.list_events(study.id) == []
        holder.kill()
        holder.wait(TIMEOUT_S)
        store.append_event(study.id, "x", "y")


def test_threads_share_one_store(store, study: Study) -> None:
    def write(name: str) -> None:
        for number in range(20):
            store.append_event(study.id, name, str(number))
            store.list_events(study.id, limit=5)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, "abcd"))
    assert len(store.list_events(study.id, limit=None)) == 80


def test_threads_that_claim_one_key_get_one_run(store, experiment: Experiment) -> None:
    with ThreadPoolExecutor(8) as pool:
        runs = list(pool.map(lambda _: store.claim_run(experiment.id, 7, "one-key"), range(16)))
    assert len({run.id for run in runs}) == 1
    assert len(store.list_runs(experiment_id=experiment.id)) == 1


def test_threads_that_want_one_lease_get_one_owner(store, study: Study) -> None:
    from experiments_db import LeaseHeld

    def acquire(owner: str) -> int | None:
        try:
            return store.acquire_lease(study.id, owner, ttl_s=60).token
        except LeaseHeld:
            return None

    with ThreadPoolExecutor(8) as pool:
        tokens = list(pool.map(acquire, "abcdefgh"))
    assert sorted(token for token in tokens if token is not None) == [1]
