"""What the weight files in a model's directory say of the weights: their number format and how many there are.

Place in the flow: asked before a model is loaded or exported. Reads the headers of weight files, never the weights, and
needs no torch.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from safetensors import SafetensorError, safe_open

from swarm.errors import CheckpointError

_BY_HEADER = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


def stored_dtype(directory: Path) -> str | None:
    """The format of the stored weights, which a configuration need not name rightly; None if no safetensors are there.

    Raises CheckpointError for a file that is damaged.
    """
    return next((known for dtype, _ in _weights(directory) if (known := _BY_HEADER.get(dtype))), None)


def stored_parameters(directory: Path) -> int:
    """How many numbers the stored weights are; 0 if no safetensors are there. Raises CheckpointError likewise."""
    return sum(math.prod(shape) for _, shape in _weights(directory))


def _weights(directory: Path) -> Iterator[tuple[str, Sequence[int]]]:
    """Format and shape of each."""
    for path in sorted(directory.glob("*.safetensors")):
        try:
            with safe_open(str(path), framework="np") as file:
                for name in file.keys():  # noqa: SIM118  it is no mapping
                    weight = file.get_slice(name)
                    yield weight.get_dtype(), weight.get_shape()
        except (OSError, SafetensorError) as error:
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            raise CheckpointError(f"checkpoint {directory} is damaged: {path.name}: {reason}") from error
