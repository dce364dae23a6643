"""New weights for samplers on other hosts: rank 0 sends every tensor over NCCL, as vLLM's `nccl` engine receives them.

Place in the flow: replaces the file in shared memory if the configuration names `nccl`. The driver asks rank 0 for a
meeting point, and the sampler passes it to the replicas. The weights are sent while the replicas wait there. A group
lives for one version, so a restarted replica simply joins the next one.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUntypedBaseClass=false, reportUntypedClassDecorator=false, reportUnknownParameterType=false
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import socket
from typing import Any

import ray
import torch
from verl.checkpoint_engine.base import CheckpointEngineRegistry

from swarm.backends.verl.ranks.weights import NamedTensors, OneWayEngine


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
