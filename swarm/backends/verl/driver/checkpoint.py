"""Checkpoints of a sharded trainer on disk: verl's own files, the weights as one Hugging Face model, and a manifest."""

# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from ray.exceptions import RayError

from swarm.errors import CheckpointError
from swarm.model_path import WEIGHT_SUFFIXES
from swarm.trainer.checkpoint_files import (
    CheckpointInfo,
    describe_file,
    info_of,
    read_checkpoint_manifest,
    written_checkpoint,
)

FORMAT: Final = "verl-1"


@dataclass(frozen=True, slots=True)
class CheckpointOrigin:
    """Properties that a trainer must share with the writer of a checkpoint. `model` identifies its architecture."""

    model: str
    strategy: str
    ranks: int
    lora_rank: int
    has_critic: bool

    @staticmethod
    def of(model_directory: Path, *, strategy: str, ranks: int, lora_rank: int, has_critic: bool) -> CheckpointOrigin:
        config = json.loads((model_directory / "config.json").read_text(encoding="utf-8"))
        shape = {key: value for key, value in config.items() if not key.startswith(("_", "transformers"))}
        digest = hashlib.sha256(json.dumps(shape, sort_keys=True).encode()).hexdigest()[:16]
        return CheckpointOrigin(digest, strategy, ranks, lora_rank, has_critic)


def write_checkpoint(
    directory: Path,
    *,
    info: CheckpointInfo,
    origin: CheckpointOrigin,
    job: Mapping[str, Any],
    model_directory: Path,
    save: Callable[[Path], None],
) -> None:
    """Write a complete checkpoint, which replaces one of the same name.

    `save` makes the processes write their shards below actor/ and critic/, and the weights as one Hugging Face model.
    Raise CheckpointError and leave the old checkpoint unchanged.
    """
    manifest = {"format": FORMAT, "origin": asdict(origin), "job": job}
    with written_checkpoint(directory, info, manifest, describe=describe_file, failures=(RayError,)) as draft:
        save(draft)
        for path in sorted(model_directory.iterdir()):
            if path.is_file() and not path.name.endswith(WEIGHT_SUFFIXES):
                shutil.copyfile(path, draft / path.name)


def read_checkpoint(directory: Path, origin: CheckpointOrigin) -> CheckpointInfo:
    """Return the state of a complete checkpoint that fits the trainer. Raise CheckpointError."""
    manifest = read_checkpoint_manifest(directory, FORMAT)
    _compare(directory, manifest["origin"], asdict(origin))
    return info_of(directory, manifest)


def _compare(directory: Path, stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    for name, value in wanted.items():
        if stored.get(name) == value:
            continue
        if name == "model":
            raise CheckpointError(f"checkpoint {directory} is of another model")
        raise CheckpointError(
            f"checkpoint {directory} was written with {name} {stored.get(name)}, and the job has {name} {value}: its "
            "shards fit only what wrote them"
        )
