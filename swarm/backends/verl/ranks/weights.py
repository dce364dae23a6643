"""How new weights leave the training processes: as one file in shared memory, or by NCCL to other hosts.

Place in the flow: verl hands its actor's weights to the checkpoint engine named in the configuration; all ranks take
part in gathering them, and rank 0 lets them out. What is answered here reaches the replicas through
`VerlTrainer` and the sampling engine. Knows nothing of vLLM's HTTP calls.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUntypedBaseClass=false, reportUntypedClassDecorator=false, reportUnknownParameterType=false
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry

WEIGHTS_PATH: Final = "weights/path"

NamedTensors = Generator[tuple[str, torch.Tensor], None, None]


class ShmFull(RuntimeError):
    """The weights do not fit where they are to be written."""


class OneWayEngine(CheckpointEngine):
    """A checkpoint engine whose receivers are not verl's: nothing to prepare, and nothing received here."""

    def prepare(self) -> dict[str, Any]:
        return {}

    def init_process_group(self, **_options: Any) -> None:
        return None

    def finalize(self) -> None:
        return None

    async def receive_weights(self, global_steps: int | None = None) -> NamedTensors:
        raise NotImplementedError("weights are received by vLLM")

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[dict[str, Any]]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        raise NotImplementedError("the receivers are not verl's workers")


@CheckpointEngineRegistry.register("shm_file")
class ShmFileEngine(OneWayEngine):
    """One safetensors file per version, complete when it is there: every tensor by its Hugging Face name, a tied output
    head once more by its own, floating-point numbers in the sampler's precision."""

    def __init__(
        self, bucket_size: int, is_master: bool = False, directory: str = "", dtype: str = "", **_options: Any
    ) -> None:
        self._is_master = is_master
        self._directory = Path(directory)
        self._dtype: torch.dtype = getattr(torch, dtype)

    async def send_weights(self, weights: NamedTensors, global_steps: int | None = None) -> dict[str, Any]:
        """Raises ShmFull on rank 0, OSError."""
        tensors = gather(weights, self._dtype, is_kept=self._is_master)
        if not self._is_master:
            return {}
        version = int(global_steps or 0)
        path = self._directory / f"v{version:08d}-{uuid.uuid4().hex[:8]}.safetensors"
        write_weights(path, tensors)
        return {WEIGHTS_PATH: str(path)}


def gather(weights: NamedTensors, dtype: torch.dtype, *, is_kept: bool) -> dict[str, torch.Tensor]:
    """Every tensor on the CPU, floating-point numbers as `dtype`; empty on ranks that only help to gather."""
    tensors: dict[str, torch.Tensor] = {}
    for name, weight in weights:
        # Gathering a tensor takes every rank, so every rank asks for all of them.
        if is_kept:
            kept = weight.detach().to("cpu", dtype if weight.is_floating_point() else weight.dtype)
            # A copy: tied weights share memory, which the file format refuses.
            tensors[name] = kept.clone(memory_format=torch.contiguous_format)
    return tensors


def write_weights(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Write the file beside its place and rename it. Raises ShmFull if there is no room, OSError."""
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
