# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Chooses the number format that a model is loaded in, and how many threads compute it.

Place in the flow: model.py asks for the format before it loads a model, operations.py for the threads after that
and before each training step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from swarm.backends.stored_dtype import stored_dtype
from swarm.processes.cores import usable_cores

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
"""Number formats by the names of transformers and vLLM."""

_MULTIPLY_BFLOAT16 = ("amx_bf16", "avx512_bf16", "bf16")
"""What torch calls the instructions of processors, x86 and ARM, that multiply bfloat16 numbers themselves."""

THREADED_PARAMETERS = 30_000_000
"""Below, threads wait for each other longer than they save when they sample a token."""
THREADED_WORK = 5_000_000_000
"""The same for a training step, in parameters times tokens."""


def choose_dtype(directory: Path, *, wanted: str, device: str) -> torch.dtype:
    """The format for the model in `directory`, by the job's `dtype`. Raises CheckpointError for a damaged file."""
    if wanted != "auto":
        return DTYPES[wanted]
    if device != "cpu":
        return torch.bfloat16
    is_worth_it = multiplies_bfloat16() and stored_dtype(directory) == "bfloat16"
    return torch.bfloat16 if is_worth_it else torch.float32


def multiplies_bfloat16() -> bool:
    """Whether this processor does; others convert each number, which takes longer than float32 does."""
    capabilities: Mapping[str, Any] = torch.cpu.get_capabilities()
    return any(capabilities.get(name) for name in _MULTIPLY_BFLOAT16)


def choose_threads(parameters: int, at_most: int | None = None) -> int:
    """One for a small model; else as many as there are cores that this process may use, up to a limit."""
    return 1 if parameters < THREADED_PARAMETERS else _cores(at_most)


def choose_training_threads(parameters: int, tokens: int, at_most: int | None = None) -> int:
    """For a training step on so many tokens: also a small model is trained by all cores if the batch is large.

    The same batch has the same number whatever else the machine does, so that a step that is made again gives the same
    weights to the bit.
    """
    return _cores(at_most) if parameters * tokens >= THREADED_WORK else choose_threads(parameters, at_most)


@contextmanager
def computing_with(threads: int) -> Iterator[None]:
    """torch computes with so many threads inside the block, and with as many as before behind it."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _cores(at_most: int | None) -> int:
    usable = usable_cores()
    return min(usable, int(torch.cpu.get_capabilities().get("num_physical_cores", usable)), at_most or usable)
