"""The directory of a model, its tokenizer, and the token ids that end its completions.

Place in the flow: the engines and the worker call it before they load a model. It reads small files only and loads no
weights. It knows no tensors and never opens a network connection.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from tokenizers import Tokenizer

from swarm.errors import EngineFailure
from swarm.job import BUNDLED_MODEL, LR_OF_BUNDLED_MODELS

BUNDLED_DIRECTORIES: Mapping[str, Path] = MappingProxyType(
    {name: Path(__file__).parent / name / "model" for name in LR_OF_BUNDLED_MODELS}
)
"""The directories of the bundled models, by name."""
BUNDLED_DIRECTORY = BUNDLED_DIRECTORIES[BUNDLED_MODEL]

WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".index.json")
"""Suffixes of the files in a model's directory that contain weights or list the files with weights."""


def resolve_model(name_or_path: str) -> Path:
    """Return the directory of a model, given the name of a bundled model or a path.

    Raise EngineFailure if the directory or one of its files is missing.
    """
    directory = BUNDLED_DIRECTORIES.get(name_or_path) or Path(name_or_path).expanduser().resolve()
    if not directory.is_dir():
        raise EngineFailure(
            f"model {name_or_path!r}: no directory {directory}; give {' or '.join(BUNDLED_DIRECTORIES)} or the path of "
            "a downloaded Hugging Face model"
        )
    for name in ("config.json", "tokenizer.json"):
        if not (directory / name).is_file():
            raise EngineFailure(f"model {name_or_path!r}: {directory} holds no {name}")
    return directory


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
