"""vLLM as a sampler: the adapter that swarm/external_samplers.py names.

Place in the flow: the replicas call it to check a request, to start a server and to reach it. The parts are in
command.py, wire.py and server.py; inside_vllm/ runs in vLLM's own processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from swarm.backends.replicas.client import ReplicaClient
from swarm.backends.replicas.layout import Device, ReplicaOrder, SamplerLimits
from swarm.backends.replicas.vllm.command import build_command, build_environment
from swarm.backends.replicas.vllm.server import NAME, VllmServer
from swarm.backends.replicas.vllm.wire import check_params
from swarm.types import SamplingParams

MEMORY_SHARE: Final = 0.4
"""Share of a GPU's memory for vLLM. The trainer's weights and optimizer states need the rest."""


class VllmAdapter:
    """Implementation of `replicas.adapter.SamplerAdapter` by vLLM."""

    name = NAME

    def check_params(self, params: SamplingParams) -> None:
        check_params(params)

    def flags_beside_trainer(self, device: Device) -> Mapping[str, Any]:
        # For a model small enough for a CPU, compiling takes longer than it saves.
        return {"gpu_memory_utilization": MEMORY_SHARE} if device == "cuda" else {"enforce_eager": True}

    def command(self, order: ReplicaOrder, *, host: str, port: int) -> list[str]:
        return build_command(order, host=host, port=port)

    def environment(self, order: ReplicaOrder, shared: Mapping[str, str]) -> dict[str, str]:
        return build_environment(order, shared)

    def connect(self, base_url: str, order: ReplicaOrder, limits: SamplerLimits) -> VllmServer:
        return VllmServer(ReplicaClient(base_url, order.key, NAME), order, limits)
