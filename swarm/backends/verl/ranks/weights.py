"""The way of new weights out of the training processes: one file in shared memory, or NCCL to other hosts.

Place in the flow: verl passes its actor's weights to the checkpoint engine named in the configuration. All ranks take
part in gathering them, and rank 0 sends them out. The answer reaches the replicas through `VerlTrainer` and the
sampler. This module knows nothing of vLLM's HTTP calls.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUntypedBaseClass=false, reportUntypedClassDecorator=false, reportUnknownParameterType=false
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any, Final

import torch
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry

from swarm.backends.replicas.weight_file import gather, path_of_version, write_weights

WEIGHTS_PATH: Final = "weights/path"

NamedTensors = Generator[tuple[str, torch.Tensor], None, None]


class OneWayEngine(CheckpointEngine):
    """Checkpoint engine whose receivers are not verl's: it prepares nothing and receives nothing."""

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
    """Checkpoint engine with one safetensors file per version, which is complete once it exists.

    It has every tensor by its Hugging Face name, and a tied output head once more by its own name. Floating-point
    numbers are in the sampler's precision.
    """

    def __init__(
        self, bucket_size: int, is_master: bool = False, directory: str = "", dtype: str = "", **_options: Any
    ) -> None:
        self._is_master = is_master
        self._directory = Path(directory)
        self._dtype: torch.dtype = getattr(torch, dtype)

    async def send_weights(self, weights: NamedTensors, global_steps: int | None = None) -> dict[str, Any]:
        """Write the file. Raise ShmFull on rank 0, OSError."""
        tensors = gather(weights, self._dtype, is_kept=self._is_master)
        if not self._is_master:
            return {}
        version = int(global_steps or 0)
        path = path_of_version(self._directory, version)
        write_weights(path, tensors)
        return {WEIGHTS_PATH: str(path)}
