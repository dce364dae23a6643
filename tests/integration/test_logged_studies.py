"""`--log`: the trackers that a user names get what a server, a training or a study's own servers train."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from command_line import run_swarm
from server_processes import server_processes
from simulated_study import reports_without_images
from typer.testing import CliRunner

from experiments_db import StoreError, TrainingScore, open_store
from researcher.cli import app

pytest.importorskip("tensorboard")
PATIENCE_S = 120.0
SMALL = ("--engine", "fake", "--planner", "rules", "--seeds", "2", "--steps", "3", "--eval-episodes", "6")


def curves(folder: Path) -> dict[str, list[int]]:
    """The steps of the reward in each training that TensorBoard has, by the path of its folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found: dict[str, list[int]] = {}
    for directory in {path.parent for path in folder.glob("**/events.*")}:
        files: Any = EventAccumulator(str(directory))
        files.Reload()
        if "critic/score/mean" in files.Tags()["scalars"]:
            found[str(directory.relative_to(folder))] = [event.step for event in files.Scalars("critic/score/mean")]
    return found


def test_a_study_records_every_step_of_its_runs_in_the_tracker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with reports_without_images():
        words = [
            "--topic",
            "Which learning rate trains word reversal best, 1e-3 or 1e-2?",
            "--home",
            "runs",
            "--log",
            "tensorboard",
        ]
        done = CliRunner().invoke(app, ["start", *words, *SMALL, "--underpowered", "--parallel", "1"])
    assert done.exit_code == 0, done.output
    with open_store(tmp_path / "runs" / "research.db", read_only=True) as store:
        [study] = store.list_studies()
        runs = store.list_runs(study_id=study.id)
        # The study has the runs already, so its servers' trainings are not recorded a second time.
        assert store.list_trainings() == []
    found = curves(tmp_path / "runs" / "tensorboard")
    own = [steps for name, steps in found.items() if study.id in name]
    assert len(runs) == 4 and own == [[1, 2, 3]] * 4, found


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--log", "nowhere"], "there is no sink 'nowhere'"),
        (["--log", "tensorboard", "--servers", "http://127.0.0.1:1"], "give --log to `swarm start`"),
    ],
)
def test_a_study_refuses_a_tracker_that_nothing_would_write_to(tmp_path: Path, words: list[str], reason: str) -> None:
    done = CliRunner().invoke(app, ["start", "--topic", "Is lr 1e-3 or 1e-2 better?", "--home", str(tmp_path), *words])
    assert done.exit_code == 2 and reason in done.output


def test_swarm_train_records_in_the_tracker_and_the_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text("engine: fake\nmodel: nano\nbatch_size: 2\nnum_repeat: 2\ntotal_steps: 3\n")
    words = ["--env", "reverse", "--job", "job.yaml", "--eval-episodes", "4", "--few-tasks", "--log", "tensorboard"]
    done = run_swarm("train", *words, SWARM_NO_RECORD="")
    assert done.exit_code == 0, done.output
    deadline = time.monotonic() + PATIENCE_S
    # The recorder outlives the training until everything is written. Two scores are the command's own.
    while (found := recorded(tmp_path / "runs")) != ([[1, 2, 3]], [(0, 4), (3, 4)]):
        assert time.monotonic() < deadline, found
        time.sleep(0.5)


def recorded(runs: Path) -> tuple[list[list[int]], list[tuple[int, int]]]:
    """The steps that TensorBoard has of each training, and the steps and sizes of the scores in the database."""
    scores: list[TrainingScore] = []
    # The recorder may just be creating the database.
    with suppress(StoreError), open_store(runs / "research.db", read_only=True) as store:
        scores = store.list_training_scores([training.id for training in store.list_trainings()])
    return list(curves(runs / "tensorboard").values()), [(score.step, score.episodes) for score in scores]


def test_an_unknown_tracker_is_refused_before_anything_starts(tmp_path: Path) -> None:
    refused = run_swarm("start", "--home", str(tmp_path / "home"), "--log", "nowhere")
    assert refused.exit_code == 2 and "there is no sink 'nowhere'" in refused.output
    assert not (tmp_path / "home").exists()


def test_a_foreign_server_is_not_told_where_to_record(tmp_path: Path) -> None:
    with server_processes(tmp_path) as make:
        refused = run_swarm("train", "--env", "reverse", "--url", make().url, "--log", "tensorboard")
    assert refused.exit_code == 2 and "give it --log" in refused.output


def test_a_ledger_is_recorded_in_a_tracker_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text("engine: fake\nmodel: nano\nbatch_size: 2\nnum_repeat: 2\ntotal_steps: 2\n")
    words = ["--env", "reverse", "--job", "job.yaml", "--eval-episodes", "4", "--few-tasks", "--home", "home"]
    assert run_swarm("train", *words).exit_code == 0
    imported = run_swarm("import", "home", "--record", str(tmp_path / "runs"), "--no-record", "--log", "tensorboard")
    assert imported.exit_code == 0, imported.output
    assert list(curves(tmp_path / "runs" / "tensorboard").values()) == [[1, 2]]
    assert not (tmp_path / "runs" / "research.db").exists()
    nowhere = run_swarm("import", "home", "--no-record")
    assert nowhere.exit_code == 2 and "nothing to record in" in nowhere.output
