"""A base score is remembered for exactly the model, environment, program and settings that it was measured with."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from swarm.cli.held_out_score import HeldOutScore
from swarm.cli.train import scores
from swarm.cli.train.scores import RememberedScore, remembered_score
from swarm.cli.train.training_folder import new_record
from swarm.environments import load_environment
from swarm.job import TrainJob
from swarm.model_path import resolve_model

SCORE = HeldOutScore(0.25, 0.05, 0.15, 0.35, 40, 0)
EPISODES = 40


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with tasks, a program and a copy of a model."""
    rows = [{"question": f"Say {number}", "answer": str(number)} for number in range(40)]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "program.py").write_text("def agent(task, model, session): return 'x'\n")
    shutil.copytree(resolve_model("nano"), tmp_path / "model")
    return tmp_path


def place_of(folder: Path, episodes: int = EPISODES, program: str | None = "program.py", **settings: Any) -> Any:
    tasks = str(folder / "tasks.jsonl")
    job = TrainJob(**{"model": str(folder / "model"), "lr": 1e-4, **settings})
    record = new_record(job, tasks, load_environment(tasks), folder / program if program else None)
    return remembered_score(folder, record, episodes)


@pytest.fixture
def kept(folder: Path) -> RememberedScore:
    place = place_of(folder)
    place.keep(SCORE)
    return place


def stored_file(folder: Path) -> Path:
    [path] = (folder / scores.FOLDER).iterdir()
    return path


def test_an_unchanged_training_finds_the_score_and_the_time_of_its_measurement(
    folder: Path, kept: RememberedScore
) -> None:
    stored = place_of(folder).find()
    assert stored.score == SCORE
    assert stored.measured_at.utcoffset().total_seconds() == 0


@pytest.mark.parametrize(
    "settings",
    [{"lr": 3e-3, "batch_size": 4}, {"algorithm": "reinforce_plus_plus"}, {"total_steps": 9, "experiment_name": "b"}],
    ids=str,
)
def test_settings_of_the_training_alone_change_no_base_score(
    folder: Path, kept: RememberedScore, settings: dict[str, Any]
) -> None:
    assert place_of(folder, **settings).find() is not None


def append(path: Path) -> None:
    with path.open("a") as file:
        file.write("\n")


CHANGES: dict[str, Callable[[Path], object]] = {
    "task file": lambda folder: append(folder / "tasks.jsonl"),
    "program": lambda folder: append(folder / "program.py"),
    "chat template": lambda folder: append(folder / "model" / "chat_template.jinja"),
    "weights": lambda folder: flip_last_byte(folder / "model" / "model.safetensors"),
    "another file of the model": lambda folder: (folder / "model" / "generation_config.json").write_text("{}"),
}


def flip_last_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_file_that_was_changed_is_measured_anew(
    folder: Path, kept: RememberedScore, change: Callable[[Path], object]
) -> None:
    change(folder)
    assert place_of(folder).find() is None


@pytest.mark.parametrize(
    "asked",
    [{"seed": 1}, {"temperature": 0.5}, {"lora_rank": 4}, {"model": "micro"}, {"episodes": 41}, {"program": None}],
    ids=str,
)
def test_other_settings_of_sampling_are_measured_anew(
    folder: Path, kept: RememberedScore, asked: dict[str, Any]
) -> None:
    assert place_of(folder, **asked).find() is None


def test_a_model_too_large_to_be_digested_is_not_remembered(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scores, "DIGESTED_BYTES", 1000)
    assert place_of(folder) is None


@pytest.mark.parametrize(
    "score",
    [
        HeldOutScore(None, None, None, None, 0, 40),
        HeldOutScore(0.25, 0.05, 0.15, 0.35, 39, 1),
        HeldOutScore(0.25, 0.05, 0.15, 0.35, 40, 0, broken=1),
    ],
    ids=["no score", "an attempt failed", "the program broke one"],
)
def test_a_score_with_failures_is_not_remembered(folder: Path, score: HeldOutScore) -> None:
    place_of(folder).keep(score)
    assert place_of(folder).find() is None


@pytest.mark.parametrize("content", [b"\xff\x00", b"{}"])
def test_a_damaged_file_is_reported_and_replaced_by_the_next_measurement(
    folder: Path, kept: RememberedScore, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    stored_file(folder).write_bytes(content)
    assert place_of(folder).find() is None
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and str(stored_file(folder)) in said
    place_of(folder).keep(SCORE)
    assert place_of(folder).find().score == SCORE


def test_a_folder_that_cannot_be_written_is_reported_and_ends_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / scores.FOLDER).write_text("a file")
    place_of(folder).keep(SCORE)
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "cannot be written" in said
