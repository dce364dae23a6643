# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
"""The weights of a checkpoint as a folder that other programs load: a Hugging Face model without training state."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from swarm.backends.local.model.adapter import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    read_base,
    refuse_other_adapter,
    verify_base,
)
from swarm.backends.local.model.computing import DTYPES
from swarm.backends.weights import UnfitWeights, load_fitting
from swarm.errors import BadRequest, CheckpointError
from swarm.model_path import BUNDLED_DIRECTORIES, WEIGHT_SUFFIXES, stored_dtype
from swarm.trainer.checkpoint_files import MANIFEST, one_line, verify_checkpoint, written_atomically


@dataclass(frozen=True, slots=True)
class Exported:
    """Result of an export. `bytes` counts all files; `is_adapter` tells that the base model is not among them."""

    checkpoint: Path
    directory: Path
    step: int
    weight_version: int
    dtype: str
    parameters: int
    is_adapter: bool
    bytes: int


def export_checkpoint(
    checkpoint: Path, directory: Path, *, dtype: str | None = None, merge_lora: bool = False
) -> Exported:
    """Write weights, configuration, tokenizer, generation settings and chat template into a directory.

    The directory must be new or empty, and is afterwards complete or absent. `dtype` is one of DTYPES, by default that
    of the checkpoint. An adapter is written alone, in peft's layout, unless `merge_lora` asks for the whole model.

    Raise BadRequest for a directory with contents, or if there is no adapter to merge. Raise CheckpointError for a
    checkpoint that is damaged or has no weights, and for an adapter whose base model is missing or another one.
    """
    refuse_occupied(directory)
    manifest = verify_checkpoint(checkpoint)
    chosen = dtype or _stored_dtype(checkpoint)
    has_adapter = (checkpoint / ADAPTER_WEIGHTS).is_file()
    if merge_lora and not has_adapter:
        raise BadRequest(f"{checkpoint} holds whole weights and no adapter: leave --merge-lora out", param="merge_lora")
    source = _base_of(checkpoint, manifest) if has_adapter else checkpoint
    content = _Adapter(checkpoint, chosen) if has_adapter and not merge_lora else _load(checkpoint, source, chosen)
    try:
        with written_atomically(directory.resolve()) as draft:
            content.save_pretrained(str(draft))
            _copy_rest(source, draft)
            size = sum(path.stat().st_size for path in draft.rglob("*") if path.is_file())
    except (OSError, RuntimeError, ValueError, SafetensorError) as error:
        raise CheckpointError(f"{directory} was not written: {one_line(error)}") from error
    return Exported(
        checkpoint=checkpoint,
        directory=directory,
        step=manifest["step"],
        weight_version=manifest["weight_version"],
        dtype=chosen,
        parameters=content.num_parameters(),
        is_adapter=isinstance(content, _Adapter),
        bytes=size,
    )


class _Adapter:
    """Adapter of a checkpoint, as peft loads it."""

    def __init__(self, checkpoint: Path, dtype: str) -> None:
        self._checkpoint = checkpoint
        self._weights = {
            name: weight.to(DTYPES[dtype]) for name, weight in load_file(checkpoint / ADAPTER_WEIGHTS).items()
        }

    def num_parameters(self) -> int:
        return sum(weight.numel() for weight in self._weights.values())

    def save_pretrained(self, save_directory: str) -> None:
        save_file(self._weights, Path(save_directory) / ADAPTER_WEIGHTS, metadata={"format": "pt"})
        shutil.copyfile(self._checkpoint / ADAPTER_CONFIG, Path(save_directory) / ADAPTER_CONFIG)


def refuse_occupied(directory: Path) -> None:
    """Raise BadRequest unless the directory is new or empty."""
    if directory.is_dir() and not any(directory.iterdir()):
        return
    if directory.exists() or directory.is_symlink():
        raise BadRequest(f"{directory} is not empty: give a directory that is new, or remove what is there")


def _stored_dtype(checkpoint: Path) -> str:
    if (found := stored_dtype(checkpoint)) is None:
        raise CheckpointError(f"checkpoint {checkpoint} holds no weights: there is no model to export")
    return found


def _base_of(checkpoint: Path, manifest: Mapping[str, Any]) -> Path:
    """Return the directory of the adapter's base model. It must be the model that the adapter was trained on."""
    recorded = read_base(checkpoint)
    base = BUNDLED_DIRECTORIES.get(manifest.get("job", {}).get("model"), recorded)
    if not base.is_dir():
        raise CheckpointError(f"the base model of {checkpoint} is not there any more: {base}")
    verify_base(checkpoint, base)
    return base


def _load(checkpoint: Path, source: Path, dtype: str) -> Any:
    """Return the model in `source`, with the checkpoint's adapter merged into it if the two directories differ."""
    if source == checkpoint:
        return _load_whole(source, DTYPES[dtype])
    from peft import PeftModel, get_peft_model_state_dict

    # Merging in float32 rounds the weights only once.
    merged: Any = PeftModel.from_pretrained(_load_whole(source, torch.float32), str(checkpoint))
    refuse_other_adapter(checkpoint, load_file(checkpoint / ADAPTER_WEIGHTS), get_peft_model_state_dict(merged))
    return merged.merge_and_unload().to(DTYPES[dtype])


def _load_whole(directory: Path, dtype: torch.dtype) -> Any:
    transformers_logging.disable_progress_bar()
    try:
        return load_fitting(AutoModelForCausalLM, directory, dtype=dtype, trust_remote_code=False)
    except UnfitWeights as error:
        raise CheckpointError(f"{directory}: its weights do not fit its config.json: {error}") from error
    except (OSError, RuntimeError, ValueError, KeyError, SafetensorError) as error:
        raise CheckpointError(f"{directory} cannot be loaded: {one_line(error)}") from error


def _copy_rest(source: Path, draft: Path) -> None:
    """Copy the files beside the weights unchanged, so that tokenizer and chat template stay identical."""
    # Beside an adapter, the configuration of its base model would make it look like a whole model.
    not_copied = {MANIFEST, "config.json"}
    for path in sorted(source.iterdir()):
        is_state = path.name in not_copied or path.name.endswith(WEIGHT_SUFFIXES)
        if path.is_file() and not is_state and not (draft / path.name).exists():
            shutil.copyfile(path, draft / path.name)
