"""A sharded checkpoint is whole or not there, and only a trainer like the one that wrote it may load it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from swarm.errors import CheckpointError
from swarm.model_path import BUNDLED_DIRECTORY
from swarm.trainer.checkpoint_files import CheckpointInfo


@pytest.fixture(scope="module", autouse=True)
def late_imports() -> None:
    global ORIGIN, CheckpointOrigin, read_checkpoint, write_checkpoint
    from swarm.backends.verl.driver.checkpoint import (
        CheckpointOrigin,
        read_checkpoint,
        write_checkpoint,
    )

    ORIGIN = CheckpointOrigin.of(BUNDLED_DIRECTORY, strategy="fsdp2", ranks=2, lora_rank=0, has_critic=False)


Save = Callable[[Path], None]


def save_shards(draft: Path) -> None:
    (draft / "actor").mkdir()
    for rank in range(2):
        (draft / "actor" / f"model_world_size_2_rank_{rank}.pt").write_bytes(bytes([rank]) * 100)
    (draft / "model.safetensors").write_bytes(b"weights")


def write(directory: Path, save: Save = save_shards, step: int = 7) -> None:
    write_checkpoint(
        directory,
        origin=ORIGIN,
        info=CheckpointInfo(step, step + 1),
        job={"lr": 1.0},
        model_directory=BUNDLED_DIRECTORY,
        save=save,
    )


def test_written_checkpoint_is_read_and_lies_as_a_hugging_face_model(tmp_path: Path) -> None:
    write(tmp_path / "step")
    assert read_checkpoint(tmp_path / "step", ORIGIN) == CheckpointInfo(step=7, weight_version=8)
    assert (tmp_path / "step" / "model.safetensors").read_bytes() == b"weights", "the trained weights, not the base's"
    assert (tmp_path / "step" / "tokenizer.json").is_file()
    assert (tmp_path / "step" / "config.json").is_file()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"ranks": 4}, "ranks 2, and the job has ranks 4"),
        ({"strategy": "megatron"}, "strategy fsdp2, and the job has strategy megatron"),
        ({"lora_rank": 8}, "lora_rank 0"),
        ({"has_critic": True}, "has_critic False"),
        ({"model": "another"}, "of another model"),
    ],
)
def test_checkpoint_of_another_trainer_is_refused(tmp_path: Path, change: dict[str, object], says: str) -> None:
    write(tmp_path / "step")
    with pytest.raises(CheckpointError, match=says):
        read_checkpoint(tmp_path / "step", replace(ORIGIN, **change))


def test_origin_tells_models_apart(tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(BUNDLED_DIRECTORY, other)
    same = CheckpointOrigin.of(other, strategy="fsdp2", ranks=2, lora_rank=0, has_critic=False)
    assert same == ORIGIN, "the same model in another place"
    config = other / "config.json"
    config.write_text(config.read_text().replace('"hidden_size": 128', '"hidden_size": 64'))
    assert CheckpointOrigin.of(other, strategy="fsdp2", ranks=2, lora_rank=0, has_critic=False) != ORIGIN


def test_damaged_incomplete_and_foreign_checkpoints_are_refused(tmp_path: Path) -> None:
    directory = tmp_path / "step"
    with pytest.raises(CheckpointError, match="not a complete checkpoint"):
        read_checkpoint(directory, ORIGIN)
    write(directory)
    shard = directory / "actor" / "model_world_size_2_rank_1.pt"
    shard.write_bytes(b"x" * 100)
    with pytest.raises(CheckpointError, match="damaged"):
        read_checkpoint(directory, ORIGIN)
    shard.unlink()
    with pytest.raises(CheckpointError, match="is missing"):
        read_checkpoint(directory, ORIGIN)
    (directory / "manifest.json").write_text('{"format": 1}')
    with pytest.raises(CheckpointError, match="another trainer"):
        read_checkpoint(directory, ORIGIN)
    (directory / "manifest.json").write_text("{")
    with pytest.raises(CheckpointError, match="not valid JSON"):
        read_checkpoint(directory, ORIGIN)


def test_write_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    write(tmp_path / "step")

    def fail(draft: Path) -> None:
        save_shards(draft)
        raise OSError("no space left on device")

    with pytest.raises(CheckpointError, match="no space left"):
        write(tmp_path / "step", fail, step=9)
    assert read_checkpoint(tmp_path / "step", ORIGIN).step == 7
    assert [path.name for path in tmp_path.iterdir()] == ["step"]
    write(tmp_path / "step", step=9)
    assert read_checkpoint(tmp_path / "step", ORIGIN).step == 9
