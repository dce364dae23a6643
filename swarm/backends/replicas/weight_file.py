"""One set of weights as a file in shared memory, which replicas on the same host read."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors.torch import save_file


class ShmFull(RuntimeError):
    """Error for weights that do not fit in shared memory."""


def gather(
    weights: Iterable[tuple[str, torch.Tensor]], dtype: torch.dtype, *, is_kept: bool
) -> dict[str, torch.Tensor]:
    """Return every tensor on the CPU, floating-point numbers as `dtype`; empty on ranks that only help to gather."""
    tensors: dict[str, torch.Tensor] = {}
    for name, weight in weights:
        # Gathering a tensor takes every rank, so every rank asks for all of them.
        if is_kept:
            kept_dtype = dtype if weight.is_floating_point() else weight.dtype
            # Always a copy: tied weights share memory, which the file format refuses.
            tensors[name] = weight.detach().to("cpu", kept_dtype, copy=True, memory_format=torch.contiguous_format)
    return tensors


def path_of_version(directory: Path, version: int) -> Path:
    """Return a new path on every call, because a version that is trained again is another file."""
    return directory / f"v{version:08d}-{uuid.uuid4().hex[:8]}.safetensors"


def write_weights(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Write the file beside its place and rename it. Raise ShmFull if the memory is full, and OSError."""
    directory = path.parent
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    free = shutil.disk_usage(directory).free
    if size > free:
        raise ShmFull(
            f"the weights take {size / 1e9:.2f} GB and {directory} has {free / 1e9:.2f} GB left: enlarge it (in a "
            "container: --shm-size, or an emptyDir of medium Memory)"
        )
    draft = path.with_suffix(".partial")
    save_file(tensors, draft, metadata={"format": "pt"})
    os.replace(draft, path)
