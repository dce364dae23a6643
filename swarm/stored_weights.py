"""The number format and the number of weights in the weight files of a model directory, and what follows from them.

Place in the flow: asked before a model is loaded or exported, and for the learning rate of a new job. It reads the
headers of weight files, never the weights, and needs no torch.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from safetensors import SafetensorError, safe_open

from swarm.errors import CheckpointError
from swarm.job import LR_OF_BUNDLED_MODELS, TrainJob, usual_lr

_BY_HEADER = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


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
    directory = Path(job.model).expanduser()
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
