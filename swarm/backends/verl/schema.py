"""The settings of verl: the tree of all of them, their owners, and the limits of those that this service supports."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import difflib
import importlib.util
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Final

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from swarm.errors import EngineFailure, JobInvalid
from swarm.job import TrainJob

MODEL_ENGINES: Final = {"fsdp": "dp", "fsdp2": "dp", "megatron": "megatron"}
"""verl's set of defaults for each strategy of the actor."""
CLASS_SETTINGS: Final = (
    "actor_rollout_ref.actor.fsdp_config.mixed_precision",
    "actor_rollout_ref.ref.fsdp_config.mixed_precision",
    "actor_rollout_ref.model.target_parameters",
    "actor_rollout_ref.rollout.enable_sleep_mode",
    "algorithm.gdpo_reward_keys",
    "algorithm.gdpo_reward_weights",
    "critic.fsdp.mixed_precision",
)
"""Settings that verl's classes have and its files do not mention, as far as they make sense here."""
CLOSE_MATCHES = 3
CLOSE_ENOUGH = 0.6


@dataclass(frozen=True)
class VerlSchema:
    """verl's configuration with its defaults, for one of its model engines."""

    tree: DictConfig

    def knows(self, path: str) -> bool:
        """Return whether verl reads a setting at this dotted path: from files, from the classes, or as free content."""
        if any(path == known or path.startswith(f"{known}.") for known in CLASS_SETTINGS):
            return True
        node: Any = self.tree
        parts = path.split(".")
        for depth, part in enumerate(parts):
            # Unlike the mapping itself, its keys contain those without a default.
            if not OmegaConf.is_dict(node) or part not in node.keys():  # noqa: SIM118
                return False
            node = node._get_node(part)
            if _is_free(node) and depth + 1 < len(parts):
                return True
        return True

    def default(self, path: str) -> Any:
        """Return the value in verl's files, or None if it has none there or refers to another one."""
        node: Any = self.tree
        for part in path.split("."):
            if not OmegaConf.is_dict(node) or part not in node:
                return None
            node = node._get_node(part)
        if OmegaConf.is_config(node):
            return OmegaConf.to_container(node)
        return None if node._is_interpolation() or node._is_missing() else node._value()

    def holds_settings(self, path: str) -> bool:
        """Return whether the path is a section with its own settings rather than one setting."""
        node = OmegaConf.select(self.tree, path, throw_on_missing=False) if path else self.tree
        return OmegaConf.is_dict(node) and bool(node)

    def close_matches(self, path: str) -> list[str]:
        """Return similar known paths, likeliest first."""
        last = path.rsplit(".", 1)[-1]
        same_name = [known for known in self._paths if known.rsplit(".", 1)[-1] == last]
        similar = difflib.get_close_matches(path, self._paths, CLOSE_MATCHES, CLOSE_ENOUGH)
        return list(dict.fromkeys([*same_name, *similar]))[:CLOSE_MATCHES]

    @cached_property
    def _paths(self) -> list[str]:
        return [path for path in _leaves(self.tree, "") if not path.endswith("_target_")]


@cache
def read_schema(model_engine: str) -> VerlSchema:
    """Return the schema of the installed verl. Do not change its tree.

    Raise EngineFailure if verl is not installed.
    """
    directory = _package_directory() / "trainer" / "config"
    with initialize_config_dir(config_dir=str(directory), version_base=None):
        return VerlSchema(compose("ppo_trainer", overrides=[f"model_engine={model_engine}"]))


def _package_directory() -> Path:
    spec = importlib.util.find_spec("verl")
    if spec is None or not spec.submodule_search_locations:
        raise EngineFailure("engine verl needs the package verl: install the server extra")
    return Path(next(iter(spec.submodule_search_locations)))


def _is_free(node: Any) -> bool:
    """Return whether the node is an empty mapping, or nothing, where verl takes any content."""
    if OmegaConf.is_dict(node):
        return not node
    return not OmegaConf.is_config(node) and node._value() is None


def _leaves(node: Any, prefix: str) -> Iterator[str]:
    for key in node:
        child = node._get_node(key)
        path = f"{prefix}.{key}" if prefix else str(key)
        if OmegaConf.is_dict(child) and child:
            yield from _leaves(child, path)
        else:
            yield path


PASSED: Final[Mapping[str, str]] = {
    "algorithm.adv_estimator": "algorithm",
    "algorithm.gamma": "gamma",
    "algorithm.lam": "lam",
    "critic.optim.lr": "critic_lr",
    "critic.cliprange_value": "cliprange_value",
    "trainer.critic_warmup": "critic_warmup",
    "algorithm.gdpo_reward_keys": "gdpo_reward_keys",
    "algorithm.gdpo_reward_weights": "gdpo_reward_weights",
    "algorithm.norm_adv_by_std_in_grpo": "norm_adv_by_std_in_grpo",
    "algorithm.rollout_correction.rollout_is_threshold": "rollout_is_threshold",
    "actor_rollout_ref.actor.optim.lr": "lr",
    "actor_rollout_ref.actor.optim.weight_decay": "weight_decay",
    "actor_rollout_ref.actor.optim.clip_grad": "grad_clip",
    "actor_rollout_ref.actor.grad_clip": "grad_clip",
    "actor_rollout_ref.actor.policy_loss.loss_mode": "policy_loss",
    "actor_rollout_ref.actor.policy_loss.dro_beta": "dro_beta",
    "actor_rollout_ref.actor.clip_ratio": "clip_ratio",
    "actor_rollout_ref.actor.clip_ratio_low": "clip_ratio_low",
    "actor_rollout_ref.actor.clip_ratio_high": "clip_ratio_high",
    "actor_rollout_ref.actor.clip_ratio_c": "clip_ratio_c",
    "actor_rollout_ref.actor.loss_agg_mode": "loss_agg_mode",
    "actor_rollout_ref.actor.entropy_coeff": "entropy_coeff",
    "actor_rollout_ref.actor.use_kl_loss": "use_kl_loss",
    "actor_rollout_ref.actor.kl_loss_coef": "kl_loss_coef",
    "actor_rollout_ref.actor.kl_loss_type": "kl_loss_type",
    "actor_rollout_ref.actor.ppo_epochs": "ppo_epochs",
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": "ppo_max_token_len",
    "actor_rollout_ref.actor.data_loader_seed": "seed",
    "actor_rollout_ref.rollout.n": "num_repeat",
    "actor_rollout_ref.rollout.temperature": "temperature",
    "actor_rollout_ref.rollout.max_model_len": "max_model_len",
    "actor_rollout_ref.rollout.seed": "seed",
    "data.train_batch_size": "batch_size",
    "data.max_response_length": "max_response_length",
    "trainer.project_name": "project_name",
    "trainer.experiment_name": "experiment_name",
    "trainer.total_training_steps": "total_steps",
}
"""Settings of verl that have the value of a field of the job as it is, by path, with the field."""

OWNED: Final[Mapping[str, str]] = {
    **PASSED,
    "algorithm.rollout_correction.rollout_is": "rollout_is",
    "algorithm.rollout_correction.loss_type": "loss_type",
    "actor_rollout_ref.model.path": "model",
    "actor_rollout_ref.model.lora_rank": "lora_rank",
    "actor_rollout_ref.model.lora_alpha": "lora_alpha",
    "actor_rollout_ref.model.target_modules": "lora_target_modules",
    "actor_rollout_ref.model.enable_gradient_checkpointing": "enable_gradient_checkpointing",
    "actor_rollout_ref.actor.optim.lr_warmup_steps": "lr_warmup_steps",
    "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio": "lr_warmup_steps",
    "actor_rollout_ref.actor.optim.lr_scheduler_type": "lr_scheduler_type",
    "actor_rollout_ref.actor.optim.warmup_style": "lr_scheduler_type",
    "actor_rollout_ref.actor.optim.min_lr_ratio": "min_lr_ratio",
    "actor_rollout_ref.actor.optim.total_training_steps": "total_steps",
    "actor_rollout_ref.actor.optim.betas": "betas",
    "actor_rollout_ref.actor.loss_scale_factor": "loss_scale_factor",
    "actor_rollout_ref.actor.ppo_mini_batch_size": "mini_batch_num",
    "actor_rollout_ref.rollout.response_length": "max_response_length",
    "trainer.save_freq": "save_freq",
    "trainer.device": "n_gpu",
}
"""The same, and those that are computed of a field."""

OWNED_SECTIONS: Final[Mapping[str, str]] = {
    "actor_rollout_ref.actor.policy_loss.rollout_correction": "policy_loss (bypass_mode, with loss_type, rollout_is"
    " and rollout_rs)",
    "algorithm.filter_groups": "stop_rule (enough_non_constant_tasks is dynamic sampling)",
}

RESERVED: Final[Mapping[str, str]] = {
    "data": "prompts come from the clients, not from a data set",
    "reward": "rewards come from the clients",
    "reward_model": "rewards come from the clients",
    "custom_reward_function": "rewards come from the clients",
    "sandbox_fusion": "rewards come from the clients",
    "skip": "rollouts come from the clients",
    "distillation": "there is no teacher in this service",
    "trainer.v1": "the service steps verl's trainer itself, one closed batch at a time",
    "trainer.use_v1": "the service is built on verl's v1 trainer",
    "trainer.total_epochs": "an epoch is one of the job's steps: set total_steps",
    "trainer.val_before_train": "evaluation is by eval episodes",
    "trainer.val_only": "evaluation is by eval episodes",
    "trainer.test_freq": "evaluation is by eval episodes",
    "trainer.logger": "metrics are in the service's ledger",
    "trainer.log_val_generations": "evaluation is by eval episodes",
    "trainer.rollout_data_dir": "episodes are in the service's ledger",
    "trainer.validation_data_dir": "evaluation is by eval episodes",
    "trainer.resume_mode": "the service resumes by itself",
    "trainer.resume_from_path": "the service resumes by itself",
    "trainer.default_local_dir": "the service places its checkpoints",
    "trainer.default_hdfs_dir": "the service places its checkpoints",
    "trainer.del_local_ckpt_after_load": "the service prunes its checkpoints",
    "trainer.max_actor_ckpt_to_keep": "the service prunes its checkpoints",
    "trainer.max_critic_ckpt_to_keep": "the service prunes its checkpoints",
    "trainer.checkpoint_callback_class": "the service places its checkpoints",
    "trainer.esi_redundant_time": "the service places its checkpoints",
    "trainer.balance_batch": "rows are always balanced over the ranks",
    "actor_rollout_ref.actor.checkpoint": "a checkpoint is always whole: model, optimizer and random state",
    "actor_rollout_ref.actor.use_dynamic_bsz": "rows differ in length: microbatches are cut by ppo_max_token_len",
    "actor_rollout_ref.actor.ppo_micro_batch_size": "microbatches are cut by ppo_max_token_len",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": "microbatches are cut by ppo_max_token_len",
    "actor_rollout_ref.actor.use_prefix_grouper": "no engine of verl 0.9 reads it, so nothing would be computed once",
    "actor_rollout_ref.actor.shuffle": "minibatches are drawn from the job's seed",
    "actor_rollout_ref.actor.rollout_n": "set num_repeat",
    "actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module": "the service registers its own",
    "actor_rollout_ref.rollout.checkpoint_engine.engine_kwargs": "the service sets where weights are written",
    "actor_rollout_ref.rollout.mode": "the sampler is a server",
    "actor_rollout_ref.rollout.agent": "agents run in the clients",
    "actor_rollout_ref.rollout.multi_turn": "agents run in the clients",
    "actor_rollout_ref.rollout.val_kwargs": "evaluation is by eval episodes",
    "actor_rollout_ref.rollout.do_sample": "each request says how it samples",
    "actor_rollout_ref.rollout.top_k": "each request says how it samples",
    "actor_rollout_ref.rollout.top_p": "each request says how it samples",
    "actor_rollout_ref.rollout.logprobs_mode": "logprobs are always those of the sampling distribution",
    "transfer_queue.enable": "rows always go through the TransferQueue",
    "ray_kwargs": "set ray_address, or SWARM_RAY_ADDRESS, of the server",
}
"""Map from a path, or the start of one, to the reason why it cannot be set."""


def owner_of(key: str) -> str | None:
    """Return the field of the job that sets this setting of verl, or None."""
    for section, field in OWNED_SECTIONS.items():
        if key == section or key.startswith(f"{section}."):
            return field
    return OWNED.get(key)


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
