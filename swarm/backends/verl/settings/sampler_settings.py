"""The vLLM side of a job's merged configuration.

Place in the flow: made when a backend is built, and passed to the sampler that runs the replicas. It translates names:
on the left vLLM's options, on the right verl's settings.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, cast

from omegaconf import OmegaConf

from swarm.backends.replicas.layout import SamplerLayout, SamplerSettings
from swarm.backends.verl.settings.configuration import VerlSettings

COMMON_FLAGS: Final = ("max_num_batched_tokens", "enforce_eager", "enable_prefix_caching", "enable_chunked_prefill")
GPU_FLAGS: Final = ("gpu_memory_utilization", "enable_sleep_mode", "quantization")


def sampler_settings(settings: VerlSettings) -> SamplerSettings:
    """Return the number, model and place of the replicas, and their options of `vllm serve`."""
    rollout = settings.config.actor_rollout_ref.rollout
    tensor_parallel, data_parallel = int(rollout.tensor_model_parallel_size), int(rollout.data_parallel_size)
    on_gpu = settings.device == "cuda"
    names = (*COMMON_FLAGS, *(GPU_FLAGS if on_gpu else ()))
    flags: dict[str, Any] = {name: rollout.get(name) for name in names if rollout.get(name) is not None}
    own = cast("dict[str, Any]", OmegaConf.to_container(rollout.engine_kwargs.vllm))
    return SamplerSettings(
        model_directory=Path(settings.config.actor_rollout_ref.model.path),
        layout=SamplerLayout(
            nodes=int(rollout.nnodes),
            replicas=int(rollout.nnodes) * int(rollout.n_gpus_per_node) // (tensor_parallel * data_parallel),
            tensor_parallel=tensor_parallel,
            data_parallel=data_parallel,
            colocated=settings.colocated,
            device="cuda" if on_gpu else "cpu",
        ),
        dtype=str(rollout.dtype),
        max_num_seqs=int(rollout.max_num_seqs),
        sampler="vllm",
        max_model_len=settings.job.max_model_len,
        seed=settings.job.seed,
        flags={**flags, **own},
        flags_setting="verl.actor_rollout_ref.rollout.engine_kwargs.vllm",
    )
