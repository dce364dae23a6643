"""Runs of any program on record, and how the explorer's files of them are found."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from experiments_db import FILE_LOGGED, InvalidRecord, StoreUnavailable, open_store, record_run

KILLED = """
import sys
from experiments_db import record_run
with record_run("killed", database=sys.argv[1]) as run:
    for step in range(1, 100_000):
        run.log({"loss": 1 / step})
        print(step, flush=True)
"""


def points_of(store, training_id: str, name: str) -> list[tuple[int, float | None]]:
    return [(span.first_step, span.mean) for span in store.sample_metrics([training_id], [name], most=1000)]


def test_a_run_of_any_program_has_settings_curves_and_an_outcome(tmp_path: Path) -> None:
    database = tmp_path / "new" / "research.db"
    with record_run("sine", {"lr": 0.1}, project="p", model="own", tags=["a"], note="n", database=database) as run:
        run.log({"loss": 2, "eval/mean": 0.5})
        run.log({"loss": math.inf}, step=5)
        run.log({"loss": 1.0})
        with open_store(database, read_only=True) as store:
            assert store.get_training(run.id).status == "ROLLING"
    with open_store(database, read_only=True) as store:
        found = store.get_training(run.id)
        assert (found.project, found.experiment, found.model, found.status, found.step) == (
            "p", "sine", "own", "COMPLETE", 6,
        )  # fmt: skip
        assert (found.settings, found.tags, found.note) == ({"lr": 0.1}, ("a",), "n")
        assert points_of(store, run.id, "loss") == [(1, 2.0), (5, None), (6, 1.0)]


def test_a_run_that_raises_is_failed_with_the_text_of_the_error(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), record_run("broken", database=tmp_path / "research.db") as run:
        raise ZeroDivisionError("by zero")
    with open_store(tmp_path / "research.db", read_only=True) as store:
        found = store.get_training(run.id)
        assert found.status == "FAILED" and found.reason is not None and "by zero" in found.reason


def test_the_database_is_the_one_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SWARM_RESEARCH_DB", raising=False)
    monkeypatch.setenv("SWARM_HOME", str(tmp_path / "home"))
    with record_run("one"):
        pass
    monkeypatch.setenv("SWARM_RESEARCH_DB", str(tmp_path / "named.db"))
    with record_run("two"):
        pass
    for path, name in ((tmp_path / "home" / "research.db", "one"), (tmp_path / "named.db", "two")):
        with open_store(path, read_only=True) as store:
            assert [each.experiment for each in store.list_trainings()] == [name]


@pytest.mark.parametrize("value", [True, "1", None, [1.0], 10**400])
def test_a_value_that_is_no_number_is_refused_and_nothing_of_the_step_is_stored(tmp_path: Path, value: object) -> None:
    with record_run("run", database=tmp_path / "research.db") as run:
        with pytest.raises(InvalidRecord, match="bad"):
            run.log({"good": 1.0, "bad": value})  # pyright: ignore[reportArgumentType]
        with pytest.raises(InvalidRecord, match="-1"):
            run.log({"good": 1.0}, step=-1)
    with open_store(tmp_path / "research.db", read_only=True) as store:
        assert store.metric_names([run.id]) == []


def test_a_home_folder_is_understood_and_files_lie_beside_the_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text("a\n1\n")
    with record_run("run", database="~/own/research.db") as run:
        copy = run.log_file("a.csv")
    assert copy.is_relative_to(tmp_path / "own" / "files") and not (tmp_path / "~").exists()


def test_a_folder_that_cannot_be_made_is_one_error_of_the_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailable, match="file"), record_run("run", database=tmp_path / "file" / "research.db"):
        pass


def test_files_are_copied_and_those_of_one_name_are_kept_apart(tmp_path: Path) -> None:
    picture = tmp_path / "curve.png"
    with record_run("run", database=tmp_path / "research.db") as run:
        copies: list[Path] = []
        for content in (b"one", b"two"):
            picture.write_bytes(content)
            copies.append(run.log_file(picture, step=3))
        with pytest.raises(InvalidRecord, match="no file"):
            run.log_file(tmp_path)
    assert [copy.read_bytes() for copy in copies] == [b"one", b"two"]
    with open_store(tmp_path / "research.db", read_only=True) as store:
        events = store.list_server_events(run.id, kind=FILE_LOGGED)
        assert [event.detail["media_type"] for event in events] == ["image/png"] * 2


def test_a_program_that_is_killed_leaves_every_step_that_was_logged(tmp_path: Path) -> None:
    database = tmp_path / "research.db"
    command = [sys.executable, "-c", KILLED, str(database)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, bufsize=1) as program:
        assert program.stdout is not None
        logged = [int(program.stdout.readline()) for _ in range(5)]
        os.kill(program.pid, signal.SIGKILL)
        logged += [int(line) for line in program.stdout if line.endswith("\n")]
    with open_store(database, read_only=True) as store:
        (found,) = store.list_trainings()
        assert [step for step, _ in points_of(store, found.id, "loss")][: len(logged)] == logged
