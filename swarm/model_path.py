"""The directory of a model, its tokenizer, the token ids that end its completions, and the size of its weights."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer

from swarm.errors import CheckpointError, EngineFailure
from swarm.job import BUNDLED_MODEL, LR_OF_BUNDLED_MODELS, TrainJob, usual_lr
from swarm.models.named import find_named
from swarm.models.packaged import PACKAGED

BUNDLED_DIRECTORIES: Mapping[str, Path] = MappingProxyType(
    {name: Path(__file__).parent / name / "model" for name in LR_OF_BUNDLED_MODELS}
)
"""The directories of the bundled models, by name."""
BUNDLED_DIRECTORY = BUNDLED_DIRECTORIES[BUNDLED_MODEL]

WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".index.json")
"""Suffixes of the files in a model's directory that contain weights or list the files with weights."""

_BY_HEADER = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


def resolve_model(name_or_path: str) -> Path:
    """Return the directory of a model, given its name or its path.

    Raise EngineFailure if the directory or one of its files is missing.
    """
    directory = directory_of(name_or_path)
    if not directory.is_dir():
        if name_or_path in PACKAGED:
            raise EngineFailure(f"model {name_or_path!r} is not on this machine: run swarm models get {name_or_path}")
        if has_name(name_or_path):
            raise EngineFailure(
                f"model {name_or_path!r}: its folder {directory} is gone: put it back, or run swarm models remove "
                f"{name_or_path}"
            )
        raise EngineFailure(
            f"model {name_or_path!r}: no directory {directory}; give a name that swarm models list shows, or the path "
            "of a downloaded Hugging Face model"
        )
    for name in ("config.json", "tokenizer.json"):
        if not (directory / name).is_file():
            raise EngineFailure(f"model {name_or_path!r}: {directory} holds no {name}")
    return directory


def directory_of(name_or_path: str) -> Path:
    """Return the directory that a model's name or path stands for, whether it is there or not."""
    if (bundled := BUNDLED_DIRECTORIES.get(name_or_path)) is not None:
        return bundled
    named = find_named(name_or_path)
    return Path(name_or_path).expanduser().resolve() if named is None else Path(named.directory)


def has_name(name_or_path: str) -> bool:
    """Return whether a model of this machine has this name, so that it is no path."""
    return name_or_path in BUNDLED_DIRECTORIES or find_named(name_or_path) is not None


def read_tokenizer(directory: Path) -> Tokenizer:
    """Return the tokenizer of a model directory. Raise EngineFailure if its file is invalid."""
    path = directory / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except Exception as error:  # tokenizers raises bare Exception for a malformed file
        raise EngineFailure(f"{path}: not a tokenizer: {error}") from error
    return tokenizer


def read_stop_ids(directory: Path, tokenizer: Tokenizer) -> frozenset[int]:
    """Return the ids that end each completion of the model.

    They are the ids in generation_config.json, else in config.json, and the id of the tokenizer's `eos_token`.
    """
    ids: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        declared = _read_json(directory / name).get("eos_token_id")
        if declared is not None:
            ids.update(cast("list[int]", declared) if isinstance(declared, list) else [int(declared)])
            break
    eos = _read_json(directory / "tokenizer_config.json").get("eos_token")
    text = cast("dict[str, Any]", eos).get("content") if isinstance(eos, dict) else eos
    if isinstance(text, str):
        token_id = tokenizer.token_to_id(text)
        if token_id is not None:
            ids.add(token_id)
    return frozenset(ids)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise EngineFailure(f"{path}: cannot be read: {error}") from error
    return cast("dict[str, Any]", data) if isinstance(data, dict) else {}


def stored_dtype(directory: Path) -> str | None:
    """Return the format of the stored weights, or None without safetensors files.

    The model's configuration may name another format. Raise CheckpointError for a damaged file.
    """
    return next((known for dtype, _ in _weights(directory) if (known := _BY_HEADER.get(dtype))), None)


def stored_parameters(directory: Path) -> int:
    """Return the number of stored weights, 0 without safetensors files. Raise CheckpointError for a damaged file."""
    return sum(math.prod(shape) for _, shape in _weights(directory))


def lr_by_size(job: TrainJob) -> float | None:
    """Return the learning rate that suits the size of the job's model, if it is not the one that the job has.

    It is None if the job gives a rate, for a bundled model, whose rate is measured, and without weights that can be
    read here.
    """
    directory = directory_of(job.model)
    if job.lr is not None or job.model in LR_OF_BUNDLED_MODELS or not directory.is_dir():
        return None
    try:
        parameters = stored_parameters(directory)
    except CheckpointError:
        return None
    suits = usual_lr(parameters, has_adapter=job.lora_rank > 0) if parameters else None
    return None if suits == job.resolve().lr else suits


def _weights(directory: Path) -> Iterator[tuple[str, Sequence[int]]]:
    """Yield the format and shape of each tensor."""
    for path in sorted(directory.glob("*.safetensors")):
        try:
            with safe_open(str(path), framework="np") as file:
                for name in file.keys():  # noqa: SIM118  it is no mapping
                    weight = file.get_slice(name)
                    yield weight.get_dtype(), weight.get_shape()
        except (OSError, SafetensorError) as error:
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            raise CheckpointError(f"checkpoint {directory} is damaged: {path.name}: {reason}") from error
