"""Which two trainings are the same, and the words for what makes them two."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from swarm.cli.train.training_folder import TrainingRecord, differences, new_record
from swarm.environments import load_environment
from swarm.job import LR_OF_BUNDLED_MODELS, TrainJob

LR = LR_OF_BUNDLED_MODELS["nano"]


def record(folder: Path, program: Path | None = None, *, name: str | None = None, **settings: Any) -> TrainingRecord:
    tasks = name or str(folder / "tasks.jsonl")
    return new_record(TrainJob(**{"total_steps": 3, **settings}), tasks, load_environment(tasks), program)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = [{"question": f"Say {number}", "answer": str(number)} for number in range(40)]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        ({}, {}, []),
        ({}, {"lr": LR}, []),
        ({}, {"total_steps": 5}, []),
        ({}, {"total_steps": None}, []),
        ({"total_steps": 5}, {"total_steps": 3}, ["total_steps 5 -> 3"]),
        ({}, {"seed": 1}, ["seed 0 -> 1"]),
        ({}, {"seed": 1, "total_steps": 9}, ["seed 0 -> 1"]),
        ({}, {"batch_size": 4, "temperature": 0.5}, ["batch_size 16 -> 4", "temperature 1.0 -> 0.5"]),
        ({"lr": LR}, {"lr": LR, "model": "micro"}, ["model nano -> micro"]),
    ],
)
def test_jobs_that_mean_the_same_are_one_training_and_may_go_further(
    folder: Path, before: dict[str, Any], now: dict[str, Any], words: list[str]
) -> None:
    assert differences(record(folder, **before), record(folder, **now)) == words


def test_more_steps_are_another_training_where_the_learning_rate_is_planned_for_their_number(folder: Path) -> None:
    before, now = (record(folder, lr_scheduler_type="linear", total_steps=steps) for steps in (3, 5))
    [words] = differences(before, now)
    assert words.startswith("total_steps 3 -> 5")


def test_a_record_read_again_is_of_the_same_training(folder: Path) -> None:
    known = record(folder)
    assert differences(TrainingRecord.model_validate_json(known.model_dump_json()), record(folder)) == []


def test_tasks_are_known_by_what_is_in_them_and_not_by_where_they_lie(folder: Path) -> None:
    known = record(folder)
    (folder / "elsewhere").mkdir()
    copy = folder / "elsewhere" / "tasks.jsonl"
    copy.write_bytes((folder / "tasks.jsonl").read_bytes())
    assert differences(known, record(folder, name=str(copy))) == []
    copy.write_text(copy.read_text().replace('"answer": "7"', '"answer": "8"'))
    words = differences(known, record(folder, name=str(copy)))
    assert words == [f"environment {folder / 'tasks.jsonl'} -> {copy}", "the task file tasks.jsonl was changed"]


def test_a_model_is_known_by_its_files(folder: Path) -> None:
    model = folder / "model"
    model.mkdir()
    (model / "model.safetensors").write_bytes(b"0" * 40 * 2**20)
    known = record(folder, model=str(model))
    assert differences(known, record(folder, model=str(model))) == []
    (model / "model.safetensors").write_bytes(b"0" * (40 * 2**20 - 1) + b"1")
    assert differences(known, record(folder, model=str(model))) == [f"the files of the model {model} were changed"]
