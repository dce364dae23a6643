# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""The choice of a model's number format, and a temporary number of torch threads.

Place in the flow: loading.py asks for the format before it loads a model; operations.py trains inside `computing_with`.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from swarm.model_path import stored_dtype

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
"""Number formats by the names of transformers and vLLM."""

_MULTIPLY_BFLOAT16 = ("amx_bf16", "avx512_bf16", "bf16")
"""torch's names of the CPU instructions, x86 and ARM, that multiply bfloat16 numbers natively."""


def choose_dtype(directory: Path, *, wanted: str, device: str) -> torch.dtype:
    """Return the format for the model in `directory` under the job's `dtype`.

    Raise CheckpointError for a damaged file.
    """
    if wanted != "auto":
        return DTYPES[wanted]
    if device != "cpu":
        return torch.bfloat16
    is_worth_it = multiplies_bfloat16() and stored_dtype(directory) == "bfloat16"
    return torch.bfloat16 if is_worth_it else torch.float32


def multiplies_bfloat16() -> bool:
    """Return whether this CPU multiplies bfloat16 natively.

    Other CPUs convert each number, which takes longer than float32.
    """
    capabilities: Mapping[str, Any] = torch.cpu.get_capabilities()
    return any(capabilities.get(name) for name in _MULTIPLY_BFLOAT16)


@contextmanager
def computing_with(threads: int) -> Generator[None]:
    """Compute with this many torch threads inside the block, and with the former number after it."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
