"""The number format of the weights in a model's directory.

Place in the flow: asked before a model is loaded or exported. Reads the headers of weight files, never the weights, and
needs no torch.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError, safe_open

from swarm.errors import CheckpointError

_BY_HEADER = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


def stored_dtype(directory: Path) -> str | None:
    """The format of the stored weights, which a configuration need not name rightly; None if no safetensors are there.

    Raises CheckpointError for a file that is damaged.
    """
    for path in sorted(directory.glob("*.safetensors")):
        try:
            with safe_open(str(path), framework="np") as file:
                for name in file.keys():  # noqa: SIM118  it is no mapping
                    if known := _BY_HEADER.get(file.get_slice(name).get_dtype()):
                        return known
        except (OSError, SafetensorError) as error:
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            raise CheckpointError(f"checkpoint {directory} is damaged: {path.name}: {reason}") from error
    return None
