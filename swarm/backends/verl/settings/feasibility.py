"""The limits of a merged configuration: each unsupported setting with one line that names the reason and the remedy.

Place in the flow: the last check of configuration.py. It knows which settings this service supports with verl and vLLM,
and nothing of their implementation.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from omegaconf import DictConfig, OmegaConf

from swarm.errors import JobInvalid
from swarm.job import TrainJob

WEIGHT_TRANSPORTS = ("shm_file", "nccl")

Problem = tuple[str, str]
"""The unsupported setting, by verl's name, and the reason."""


def check_limits(job: TrainJob, config: DictConfig) -> None:
    """Raise JobInvalid for the first setting that cannot be honoured."""
    checks = [_of_sampler, _of_objective, _of_weights, *([_of_cpu] if job.n_gpu == 0 else [])]
    for check in checks:
        for key, problem in check(job, config):
            raise JobInvalid(f"verl.{key}: {problem}", param=f"verl.{key}")


def _of_sampler(job: TrainJob, config: DictConfig) -> Iterator[Problem]:
    rollout = config.actor_rollout_ref.rollout
    prefix = "actor_rollout_ref.rollout"
    if rollout.name != "vllm":
        yield (
            f"{prefix}.name",
            f"the sampler is vLLM behind its HTTP server: {rollout.name} cannot be given weights here",
        )
    per_node = int(rollout.n_gpus_per_node)
    per_replica = int(rollout.tensor_model_parallel_size) * int(rollout.data_parallel_size)
    if int(rollout.nnodes) < 1 or per_node < 1 or per_node % per_replica:
        yield (
            f"{prefix}.n_gpus_per_node",
            f"the {per_node} sampler slots of a node do not divide into replicas of {per_replica} "
            "(tensor_model_parallel_size times data_parallel_size)",
        )
    if rollout.pipeline_model_parallel_size != 1:
        yield f"{prefix}.pipeline_model_parallel_size", "a replica's layers stay together: leave it at 1"
    if rollout.disaggregation.enabled:
        yield f"{prefix}.disaggregation.enabled", "prefill and decoding stay together in each replica"
    if rollout.enable_rollout_routing_replay:
        yield f"{prefix}.enable_rollout_routing_replay", "the experts that the sampler chose are not recorded"


def _of_objective(job: TrainJob, config: DictConfig) -> Iterator[Problem]:
    algorithm, correction = config.algorithm, config.algorithm.rollout_correction
    if algorithm.use_kl_in_reward and not job.has_critic:
        yield "algorithm.use_kl_in_reward", "rewards are of whole episodes: use the job's use_kl_loss"
    if algorithm.use_pf_ppo:
        yield "algorithm.use_pf_ppo", "a closed batch is trained as it is"
    if job.policy_loss == "bypass_mode":
        for name in ("rollout_rs", "rollout_rs_threshold", "rollout_is_batch_normalize"):
            if correction[name]:
                yield f"algorithm.rollout_correction.{name}", f"the job has a field for this: set {name} instead"
        if not correction.bypass_mode:
            yield "algorithm.rollout_correction.bypass_mode", "policy_loss bypass_mode is just that: leave it out"
    if correction.bypass_mode and (job.has_proximal_policy or correction.rollout_rs):
        yield (
            "algorithm.rollout_correction.bypass_mode",
            "a correction needs the policy at the start of the step: leave it out, or set rollout_is to off",
        )


def _of_weights(job: TrainJob, config: DictConfig) -> Iterator[Problem]:
    model, rollout = config.actor_rollout_ref.model, config.actor_rollout_ref.rollout
    backend = rollout.checkpoint_engine.backend
    key = "actor_rollout_ref.rollout.checkpoint_engine.backend"
    if backend not in WEIGHT_TRANSPORTS:
        yield key, f"weights travel by {' or '.join(WEIGHT_TRANSPORTS)}, not by {backend}"
    if backend == "shm_file" and int(rollout.nnodes) > 1:
        yield key, "shared memory reaches one host: set nccl for a sampler on several"
    if model.lora_rank and not model.lora.merge:
        yield "actor_rollout_ref.model.lora.merge", "the sampler takes whole weights, adapters merged: leave it true"


def _of_cpu(job: TrainJob, config: DictConfig) -> Iterator[Problem]:
    for key, allowed, reason in (
        ("actor_rollout_ref.actor.strategy", "fsdp2", "only fsdp2 trains on the CPU"),
        ("critic.strategy", "fsdp2", "only fsdp2 trains on the CPU"),
        ("actor_rollout_ref.hybrid_engine", False, "vLLM on the CPU cannot sleep"),
        ("actor_rollout_ref.rollout.enable_sleep_mode", False, "vLLM on the CPU cannot sleep"),
        ("actor_rollout_ref.rollout.checkpoint_engine.backend", "shm_file", "nccl needs GPUs"),
        (
            "actor_rollout_ref.model.override_config.attn_implementation",
            ("sdpa", "eager"),
            "flash attention needs a GPU",
        ),
        ("actor_rollout_ref.model.use_liger", False, "its kernels need a GPU"),
        ("actor_rollout_ref.model.use_fused_kernels", False, "its kernels need a GPU"),
        ("actor_rollout_ref.actor.ulysses_sequence_parallel_size", 1, "sequence parallelism needs GPUs"),
        ("actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size", 1, "sequence parallelism needs GPUs"),
        ("actor_rollout_ref.actor.fsdp_config.offload_policy", False, "the weights are in the host's memory already"),
        ("actor_rollout_ref.actor.fsdp_config.qat.enable", False, "quantization-aware training needs a GPU"),
    ):
        value: Any = OmegaConf.select(config, key)
        if value not in (allowed if isinstance(allowed, tuple) else (allowed,)):
            yield key, f"{value!r} cannot be used with n_gpu 0: {reason}"
