"""The way of new weights out of the training processes: a file in shared memory, or NCCL to other hosts."""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUntypedBaseClass=false, reportUntypedClassDecorator=false, reportUnknownParameterType=false
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import socket
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final

import ray
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


@CheckpointEngineRegistry.register("nccl")
class BroadcastEngine(OneWayEngine):
    """Checkpoint engine that broadcasts weights over NCCL.

    Rank 0 is the sender and rank 0 of the group; samplers are the ranks from 1 on.
    """

    def __init__(
        self, bucket_size: int, is_master: bool = False, dtype: str = "", world_size: int = 2, **_options: Any
    ) -> None:
        self._is_master = is_master
        self._dtype: torch.dtype = getattr(torch, dtype)
        self._world_size = world_size
        self._meeting_point: tuple[str, int] | None = None

    def prepare(self) -> dict[str, Any]:
        """Return a new meeting point, from rank 0 only."""
        if not self._is_master:
            return {}
        with socket.socket() as probe:
            probe.bind(("", 0))
            port: int = probe.getsockname()[1]
        self._meeting_point = ray.util.get_node_ip_address().strip("[]"), port
        return {"master_address": self._meeting_point[0], "master_port": port, "world_size": self._world_size}

    async def send_weights(self, weights: NamedTensors, global_steps: int | None = None) -> dict[str, Any]:
        """Return when every sampler has every tensor. Raise the errors of NCCL."""
        if not self._is_master:
            # Gathering a tensor takes every rank, so every rank asks for all of them.
            for _pair in weights:
                pass
            return {}
        group = self._join()
        stream = torch.cuda.current_stream()
        for _name, weight in weights:
            kept = weight.detach().to("cuda", self._dtype if weight.is_floating_point() else weight.dtype)
            group.broadcast(kept.contiguous(), src=0, stream=stream)
        stream.synchronize()
        return {}

    def _join(self) -> Any:
        # Imported late: only this transport needs vLLM.
        from verl.utils.distributed import stateless_init_process_group

        assert self._meeting_point is not None, "the driver prepares every transfer"
        address, port = self._meeting_point
        return stateless_init_process_group(address, port, 0, self._world_size, torch.device("cuda"))
