"""Servers record their trainings: in a process beside them, across kills, and afterwards from the ledger."""

from __future__ import annotations

import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
from command_line import run_swarm
from server_processes import ServerProcess, server_processes
from tests_support import run_batch, wait_for_state, wait_for_step

from swarm import SwarmClient, TrainJob

if TYPE_CHECKING:
    from experiments_db import ExperimentStore, RecordedTraining

JOB = TrainJob(engine="fake", batch_size=2, num_repeat=4, drain_timeout_s=1, project_name="p", experiment_name="e")
PATIENCE_S = 120.0


@pytest.fixture(scope="module", autouse=True)
def late_imports() -> None:
    global EpisodeFilter, StoreError, open_store
    from experiments_db import EpisodeFilter, StoreError, open_store


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server that records into `runs` of this test."""
    with server_processes(tmp_path) as make:
        process = make(is_running=False)
        process.env = {"SWARM_NO_RECORD": "", "SWARM_RECORD": str(tmp_path / "runs")}
        process.start()
        yield process


def train(server: ServerProcess, job: TrainJob = JOB, *, first: int = 1, last: int = 1, is_anew: bool = False) -> None:
    """Train the steps from `first` to `last` of a job, which replaces the one before if it is another."""
    with SwarmClient(server.url) as client:
        client.auto_sync_train_config_and_start_engine(job, force_restart=is_anew)
    with httpx.Client(base_url=server.url, timeout=60) as http:
        for step in range(first, last + 1):
            wait_for_state(http, "ROLLING")
            run_batch(http, tasks=2, repeats=4, name=f"task-{step}")
            wait_for_step(http, step)


def recorded(tmp_path: Path, *, step: int, trainings: int = 1, status: str | None = None) -> RecordedTraining:
    """Return the newest training once the database has it up to a step."""
    deadline = time.monotonic() + PATIENCE_S
    found: list[RecordedTraining] = []
    while time.monotonic() < deadline:
        try:
            with open_store(tmp_path / "runs" / "research.db", read_only=True) as store:
                found = store.list_trainings()
        except StoreError:
            # The recorder is just creating it.
            found = []
        if len(found) == trainings and found[0].step >= step and status in {None, found[0].status}:
            return found[0]
        time.sleep(0.2)
    pytest.fail(f"the database has {found}")


def rewards(store: ExperimentStore, training_id: str) -> list[tuple[int, float | None]]:
    spans = store.sample_metrics([training_id], ["critic/score/mean"], most=100)
    return [(span.first_step, span.mean) for span in spans]


def test_a_training_of_no_study_is_recorded_with_curves_and_trained_episodes(
    server: ServerProcess, tmp_path: Path
) -> None:
    train(server, last=2)
    training = recorded(tmp_path, step=2)
    assert (training.project, training.experiment, training.engine) == ("p", "e", "fake")
    with open_store(tmp_path / "runs" / "research.db", read_only=True) as store:
        assert rewards(store, training.id) == [(1, 0.5), (2, 0.5)]
        episodes = store.search_trained_episodes(training.id, EpisodeFilter())[0]
        assert {(item.step, item.chosen_as) for item in episodes} >= {(1, "best"), (1, "worst"), (2, "random")}
        best = next(item for item in episodes if item.chosen_as == "best")
        assert best.reward == 1.0 and best.advantage is not None and best.advantage > 0
        whole = store.get_trained_episode(training.id, best.episode_id)
        assert whole.messages[-1]["role"] == "assistant"
        assert any(sample["loss_mask"] for sample in whole.samples)
        assert len(whole.samples[0]["tokens"]) == len(whole.samples[0]["token_ids"])
        assert "batch.trained" in {event.kind for event in store.list_server_events(training.id)}


def test_a_killed_server_goes_on_being_recorded_as_the_same_training(server: ServerProcess, tmp_path: Path) -> None:
    train(server)
    server.kill()
    recorded(tmp_path, step=1)
    server.start()
    train(server, first=2, last=2)
    training = recorded(tmp_path, step=2)
    with open_store(tmp_path / "runs" / "research.db", read_only=True) as store:
        assert [step for step, _ in rewards(store, training.id)] == [1, 2]


def test_the_next_job_of_a_server_is_another_training_and_the_first_one_is_said_to_be_replaced(
    server: ServerProcess, tmp_path: Path
) -> None:
    train(server)
    train(server, JOB.model_copy(update={"experiment_name": "other"}), is_anew=True)
    assert recorded(tmp_path, step=1, trainings=2).experiment == "other"
    deadline = time.monotonic() + PATIENCE_S
    statuses: list[str] = []
    while statuses != ["REPLACED"] and time.monotonic() < deadline:
        with open_store(tmp_path / "runs" / "research.db", read_only=True) as store:
            statuses = [item.status for item in store.list_trainings() if item.experiment == "e"]
        time.sleep(0.2)
    assert statuses == ["REPLACED"]


@pytest.fixture(scope="module")
def unrecorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home of a server that recorded nothing and has ended, with a training of three steps."""
    directory = tmp_path_factory.mktemp("unrecorded")
    with server_processes(directory) as make:
        process = make()
        train(process, last=3)
        return process.home


@pytest.fixture
def home(unrecorded: Path, tmp_path: Path) -> Path:
    """A copy of that home."""
    return Path(shutil.copytree(unrecorded, tmp_path / "home"))


def import_into(runs: Path, home: Path) -> str:
    done = run_swarm("import", str(home), SWARM_RECORD=str(runs))
    assert done.exit_code == 0, done.output
    return done.stderr


def steps_in(runs: Path) -> list[int]:
    with open_store(runs / "research.db", read_only=True) as store:
        [training] = store.list_trainings()
        return [step for step, _ in rewards(store, training.id)]


def test_a_ledger_is_imported_once_into_each_place_and_again_where_it_was_lost(home: Path, tmp_path: Path) -> None:
    assert "3 new steps" in import_into(tmp_path / "a", home) and "0 new steps" in import_into(tmp_path / "a", home)
    assert "3 new steps" in import_into(tmp_path / "b", home)
    shutil.rmtree(tmp_path / "a")
    assert "3 new steps" in import_into(tmp_path / "a", home)
    assert steps_in(tmp_path / "a") == steps_in(tmp_path / "b") == [1, 2, 3]


@pytest.mark.parametrize("has_gone_on", [False, True], ids=["as it was put back", "after more events than were read"])
def test_an_older_copy_that_was_put_back_leaves_no_row_of_the_lost_history(
    home: Path, tmp_path: Path, has_gone_on: bool
) -> None:
    import_into(tmp_path / "runs", home)
    with closing(sqlite3.connect(home / "ledger.db")) as ledger, ledger:
        ledger.execute("DELETE FROM batches WHERE step = 3")
        ledger.execute(
            "UPDATE batches SET metrics = json_set(metrics, '$.\"critic/score/mean\"', 0.125) WHERE step = 2"
        )
        (newest,) = ledger.execute("SELECT max(event_id) FROM events").fetchone()
        ledger.execute("DELETE FROM events WHERE event_id > ?", (newest - 2,))
        for number in range(5 if has_gone_on else 0):
            ledger.execute("INSERT INTO events (kind, detail, at) VALUES ('engine.noted', '{}', ?)", (2e9 + number,))

    import_into(tmp_path / "runs", home)

    with open_store(tmp_path / "runs" / "research.db", read_only=True) as store:
        [training] = store.list_trainings()
        assert [step for step, _ in rewards(store, training.id)] == [1, 2]
        points = {(item.step, item.name): item.value for item in store.list_training_points(training.id)}
    assert points[2, "critic/score/mean"] == 0.125 and {step for step, _ in points} == {1, 2}


def test_another_ledger_in_the_same_home_is_recorded_from_its_start(home: Path, tmp_path: Path) -> None:
    import_into(tmp_path / "runs", home)
    with closing(sqlite3.connect(home / "ledger.db")) as ledger, ledger:
        ledger.execute("UPDATE marks SET ledger_id = 'another'")
    assert "3 new steps" in import_into(tmp_path / "runs", home)
    with open_store(tmp_path / "runs" / "research.db", read_only=True) as store:
        assert len(store.list_trainings()) == 2


def test_a_damaged_episode_costs_its_step_the_episodes_and_nothing_else(home: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(home / "ledger.db")) as ledger, ledger:
        ledger.execute("UPDATE episodes SET reward = 0.3 WHERE number = 1")
    import_into(tmp_path / "runs", home)
    assert steps_in(tmp_path / "runs") == [1, 2, 3]
    with open_store(tmp_path / "runs" / "research.db", read_only=True) as store:
        [training] = store.list_trainings()
        assert {item.step for item in store.search_trained_episodes(training.id, EpisodeFilter())[0]} == {2, 3}


def test_a_directory_without_a_ledger_is_refused_by_name(tmp_path: Path) -> None:
    done = run_swarm("import", str(tmp_path))
    assert done.exit_code == 3 and "ledger.db" in done.stderr


def test_a_server_that_is_told_not_to_records_nothing(tmp_path: Path) -> None:
    with server_processes(tmp_path) as make:
        process = make(is_running=False)
        process.env = {"SWARM_NO_RECORD": "1", "SWARM_RECORD": str(tmp_path / "runs")}
        process.start()
        train(process)
        assert not (process.home / "recorder.log").exists()
    assert not (tmp_path / "runs").exists()


def test_a_training_that_was_ended_early_is_complete_after_its_server_is_gone(
    server: ServerProcess, tmp_path: Path
) -> None:
    train(server, JOB.model_copy(update={"total_steps": 5}), last=2)
    with SwarmClient(server.url) as client:
        client.change_job({"total_steps": 2})
    recorded(tmp_path, step=2, status="COMPLETE")
    assert server.process is not None
    server.process.terminate()
    server.wait()
    training = recorded(tmp_path, step=2, status="COMPLETE")
    deadline = time.monotonic() + PATIENCE_S
    while training.reason is not None:
        # The reason of the running server, "all 2 steps are done", is gone with it.
        assert time.monotonic() < deadline, training.reason
        time.sleep(0.2)
        training = recorded(tmp_path, step=2, status="COMPLETE")
