"""Checkpoints of the local learner on disk: complete or not there at all."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError
from transformers.utils import logging as transformers_logging

from swarm.errors import CheckpointError
from swarm.trainer.checkpoint_files import (
    CheckpointInfo,
    fingerprint,
    info_of,
    one_line,
    read_checkpoint_manifest,
    written_checkpoint,
)

TRAINER_STATE = "trainer_state.pt"
FORMAT = 1


class Pretrained(Protocol):
    """Model or tokenizer that writes itself in the Hugging Face layout."""

    def save_pretrained(self, save_directory: str) -> object: ...


def write_checkpoint(
    directory: Path,
    *,
    info: CheckpointInfo,
    job: dict[str, Any],
    model: Pretrained,
    tokenizer: Pretrained | None,
    trainer_state: dict[str, Any],
) -> None:
    """Write a complete checkpoint, which replaces one of the same name.

    Raise CheckpointError and leave the old checkpoint unchanged. If the process is killed, `directory` is either the
    old checkpoint or the new one. Between two renames it is absent, and the old one lies beside it as
    `.<name>.replaced`.
    """
    manifest = {"format": FORMAT, "job": job}
    failures = RuntimeError, SafetensorError
    with written_checkpoint(directory, info, manifest, describe=fingerprint, failures=failures) as draft:
        model.save_pretrained(str(draft))
        if tokenizer is not None:
            tokenizer.save_pretrained(str(draft))
        torch.save(trainer_state, draft / TRAINER_STATE)


def read_checkpoint(directory: Path) -> tuple[CheckpointInfo, dict[str, Any]]:
    """Return the step and trainer state of a checkpoint with intact files. Raise CheckpointError."""
    info = info_of(directory, read_checkpoint_manifest(directory, FORMAT))
    try:
        state = torch.load(directory / TRAINER_STATE, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise CheckpointError(f"checkpoint {directory} cannot be read: {one_line(error)}") from error
    return info, state


def read_weights(directory: Path, like: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return parameters by name, on the CPU, in the dtype and shapes of `like`, a Hugging Face model.

    Raise CheckpointError if they belong to another model.
    """
    expected = dict(like.named_parameters())
    dtype = next(iter(expected.values())).dtype
    try:
        with _no_progress_bar():
            stored = type(like).from_pretrained(directory, dtype=dtype, local_files_only=True)  # type: ignore[attr-defined]
    except (OSError, RuntimeError, ValueError, SafetensorError) as error:
        raise CheckpointError(f"checkpoint {directory} cannot be loaded: {one_line(error)}") from error
    weights = {name: weight.detach() for name, weight in stored.named_parameters()}
    shapes = {name: weight.shape for name, weight in weights.items()}
    if shapes != {name: weight.shape for name, weight in expected.items()}:
        raise CheckpointError(f"checkpoint {directory} is of another model: parameter names or shapes differ")
    return weights


@contextmanager
def _no_progress_bar() -> Generator[None]:
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()
