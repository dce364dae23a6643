"""vLLM as a sampler: the adapter that swarm/external_samplers.py names, with the command line of a replica."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

from swarm.backends.replicas.adapter import Device, ReplicaOrder, SamplerLimits, SamplerSettings
from swarm.backends.replicas.client import ReplicaClient
from swarm.backends.replicas.vllm.server import NAME, SERVED_NAME, VllmServer
from swarm.errors import JobInvalid
from swarm.sampling_limits import SAMPLING_LIMITS

INSIDE: Final = Path(__file__).parent / "inside_vllm"
"""Modules for the interpreter that has vLLM."""
KEY_VARIABLE: Final = "VLLM_API_KEY"
OWN_FLAGS: Final = frozenset(
    {
        "api_key", "data_parallel_size", "device", "dtype", "enable_sleep_mode", "generation_config", "host",
        "logprobs_mode", "max_model_len", "max_num_seqs", "middleware", "model", "port", "root_path", "seed",
        "served_model_name", "ssl_certfile", "ssl_keyfile", "stream_interval", "structured_outputs_config",
        "tensor_parallel_size", "tokenizer", "uds", "weight_transfer_config", "worker_extension_cls",
    }
)  # fmt: skip
"""Flags that the sampler relies on, or for which a job has another setting. If `stream_interval` delayed tokens past a
weight change, they would be recorded with the wrong version."""
CPU_DEFAULTS: Final = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
"""One GiB of cache, and threads that the operating system may move: the cores are shared with the trainer."""
EAGER_ON_CPU: Final = {"TORCHDYNAMO_DISABLE": "1"}
"""Without a compiled model, compiling a few functions of the sampler would delay the first request by the time that it
takes to start."""


MEMORY_SHARE: Final = 0.4
"""Share of a GPU's memory for vLLM. The trainer's weights and optimizer states need the rest."""


class VllmAdapter:
    """Implementation of `replicas.adapter.SamplerAdapter` by vLLM."""

    name = NAME

    def flags_beside_trainer(self, device: Device) -> Mapping[str, Any]:
        # For a model small enough for a CPU, compiling takes longer than it saves.
        return {"gpu_memory_utilization": MEMORY_SHARE} if device == "cuda" else {"enforce_eager": True}

    def command(self, order: ReplicaOrder, *, host: str, port: int) -> list[str]:
        settings, layout = order.settings, order.settings.layout
        options: dict[str, Any] = {
            "host": host,
            "port": port,
            "served_model_name": SERVED_NAME,
            "dtype": settings.dtype,
            "max_num_seqs": settings.max_num_seqs,
            "max_model_len": settings.max_model_len,
            "seed": order.seed,
            "tensor_parallel_size": layout.tensor_parallel,
            # vLLM's own sampling defaults, not those of the model: each request carries its parameters.
            "generation_config": "vllm",
            "logprobs_mode": "processed_logprobs",
            "max_logprobs": int(SAMPLING_LIMITS["top_logprobs"].high),
            # The grammars of requests are written for this backend, as for the local sampler.
            "structured_outputs_config": {"backend": "guidance"},
            "weight_transfer_config": {"backend": settings.transport},
            "worker_extension_cls": "swarm_weights.Extension",
            "middleware": "swarm_access.RequireKey",
            "disable_uvicorn_access_log": True,
        }
        if layout.data_parallel > 1:
            options["data_parallel_size"] = layout.data_parallel
        if layout.colocated:
            options["enable_sleep_mode"] = True
        options |= _checked(settings)
        vllm = [str(order.python), "-m", "vllm.entrypoints.cli.main", "serve", str(settings.model_directory)]
        return [*vllm, *_as_arguments(options)]

    def environment(self, order: ReplicaOrder, shared: Mapping[str, str]) -> dict[str, str]:
        environment = {
            **shared,
            "PYTHONPATH": os.pathsep.join([str(INSIDE), shared["PYTHONPATH"]]),
            KEY_VARIABLE: order.key,
            # This enables the routes that pause, update and put to sleep.
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_NO_USAGE_STATS": "1",
        }
        if allowed := shared.get("VLLM_PLUGINS"):
            environment["VLLM_PLUGINS"] = f"{allowed},swarm_grammars"
        if order.settings.layout.device == "cpu":
            eager = EAGER_ON_CPU if order.settings.flags.get("enforce_eager") else {}
            return {**CPU_DEFAULTS, **eager, **environment}
        return environment

    def connect(self, base_url: str, order: ReplicaOrder, limits: SamplerLimits) -> VllmServer:
        return VllmServer(ReplicaClient(base_url, order.key, NAME), order, limits)


def _checked(settings: SamplerSettings) -> dict[str, Any]:
    chosen = {name.replace("-", "_"): value for name, value in settings.flags.items()}
    # verl has its own setting for this, which must agree with the layout.
    if chosen.get("enable_sleep_mode") is settings.layout.colocated:
        del chosen["enable_sleep_mode"]
    taken = sorted(OWN_FLAGS & chosen.keys())
    if taken:
        raise JobInvalid(
            f"the option {taken[0]} of vLLM is set by the engine: leave it out",
            param=f"{settings.flags_setting}.{taken[0]}",
        )
    return chosen


def _as_arguments(options: Mapping[str, Any]) -> list[str]:
    arguments: list[str] = []
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        match value:
            case None:
                continue
            case True:
                arguments.append(flag)
            case False:
                arguments.append(f"--no-{name.replace('_', '-')}")
            case Mapping():
                arguments += [flag, json.dumps(value)]
            case str() | int() | float():
                arguments += [flag, str(value)]
            case Sequence():
                arguments += [flag, *(str(each) for each in cast("Sequence[object]", value))]
            case _:
                raise JobInvalid(f"the option {name} of vLLM cannot be {value!r}")
    return arguments
