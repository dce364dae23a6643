"""The verl configuration of a job: settings implied by the job's fields, then the job's own overrides, all checked."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from swarm.backends.replicas.adapter import SamplerLayout, SamplerSettings
from swarm.backends.verl.schema import MODEL_ENGINES, PASSED, RESERVED, VerlSchema, check_limits, owner_of, read_schema
from swarm.errors import JobInvalid
from swarm.job import CRITIC, TRAITS, TrainJob
from swarm.job.checks import bypass_settings
from swarm.trainer.checkpoint_files import one_line

ACTOR: Final = "actor_rollout_ref.actor"
REF: Final = "actor_rollout_ref.ref"
ROLLOUT: Final = "actor_rollout_ref.rollout"
MODEL: Final = "actor_rollout_ref.model"
CORRECTION: Final = "verl.trainer.config.algorithm.RolloutCorrectionConfig"

CPU_SEQUENCES: Final = 32
"""Number of sequences at once on a CPU; verl's default of 256 suits a GPU."""


@dataclass(frozen=True, slots=True)
class VerlSettings:
    """Job with its merged configuration: verl's tree, with every reference in it resolved."""

    job: TrainJob
    config: DictConfig

    @property
    def device(self) -> str:
        return str(self.config.trainer.device)

    @property
    def ranks(self) -> int:
        """Number of training processes, one per GPU or, on the CPU, one per slot."""
        return int(self.config.trainer.nnodes) * int(self.config.trainer.n_gpus_per_node)

    @property
    def transport(self) -> str:
        """Way of the weights to the sampler."""
        return str(self.config.actor_rollout_ref.rollout.checkpoint_engine.backend)

    @property
    def colocated(self) -> bool:
        """True if the sampler shares the trainer's GPUs and sleeps while the trainer uses them."""
        return bool(self.config.actor_rollout_ref.hybrid_engine)


def merge_settings(job: TrainJob, model_directory: Path) -> VerlSettings:
    """Return verl's configuration for this job, whose model is in `model_directory`.

    Raise JobInvalid, with the key as its `param`, for a key that verl does not know, or that a field of the job or the
    service sets. Raise it as well for a value of the wrong type, and for a setting that cannot run on this server.
    """
    job = job.resolve()
    overrides = dict(_flatten(job.verl))
    schema = read_schema(_model_engine(overrides))
    given = {key: value for key, value in overrides.items() if key != "model_engine"}
    for key, value in given.items():
        _check_key(schema, key, value)
    _refuse_dtype(job)
    layout = _layout(job, given)
    config = schema.tree.copy()
    with open_dict(config):
        for key, value in {**_implied(job, model_directory, overrides), **layout, **given}.items():
            _set(config, key, value)
        try:
            OmegaConf.resolve(config)
        except OmegaConfBaseException as error:
            raise JobInvalid(f"verl: {one_line(error)}", param="verl") from error
    settings = VerlSettings(job, config)
    check_limits(job, config)
    return settings


def _flatten(section: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted keys of nested sections, in written order. An empty mapping is a value."""
    for key, value in section.items():
        path = f"{prefix}.{key}" if prefix else str(key)
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, path)
        else:
            yield path, value


def _model_engine(overrides: Mapping[str, Any]) -> str:
    """Return the set of verl's defaults that the overrides select, by `model_engine` or the actor's strategy."""
    key, strategy = f"verl.{ACTOR}.strategy", overrides.get(f"{ACTOR}.strategy", "fsdp2")
    if strategy not in MODEL_ENGINES:
        raise JobInvalid(f"{key}: must be one of {', '.join(MODEL_ENGINES)}", param=key)
    asked = overrides.get("model_engine", MODEL_ENGINES[strategy])
    if asked not in MODEL_ENGINES.values():
        raise JobInvalid("verl.model_engine: must be one of dp, megatron", param="verl.model_engine")
    return str(asked)


def _check_key(schema: VerlSchema, key: str, value: Any) -> None:
    param = f"verl.{key}"
    if field := owner_of(key):
        raise JobInvalid(f"{param}: the job has a field for this: set {field} instead", param=param)
    for prefix, reason in RESERVED.items():
        if key == prefix or key.startswith(f"{prefix}."):
            raise JobInvalid(f"{param}: cannot be set: {reason}", param=param)
    if not schema.knows(key):
        close = schema.close_matches(key)
        hint = f": did you mean {' or '.join(close)}?" if close else ": see verl's trainer/config"
        raise JobInvalid(f"{param}: verl's files have no such setting{hint}", param=param)
    if schema.holds_settings(key):
        raise JobInvalid(f"{param}: is a section of settings, not a setting", param=param)
    expected = schema.default(key)
    if not _fits(value, expected):
        kind = "a number" if isinstance(expected, float) else f"of type {type(expected).__name__}"
        raise JobInvalid(f"{param}: must be {kind}, like verl's default {expected!r} (got {value!r})", param=param)


def _fits(value: Any, expected: Any) -> bool:
    """Return whether a value may replace the value `expected` of verl's files."""
    if expected is None or value is None:
        return True
    if isinstance(expected, bool) or isinstance(value, bool):
        return isinstance(value, bool) and isinstance(expected, bool)
    if isinstance(expected, int | float):
        return isinstance(value, int | float) and (isinstance(expected, float) or float(value).is_integer())
    # Some settings take one name or a list of names.
    return isinstance(value, str | list) if isinstance(expected, str | list) else True


def _layout(job: TrainJob, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the trainer's nodes and GPUs for verl. Raise JobInvalid if they are not the job's `n_gpu` GPUs."""
    nnodes = int(given.get("trainer.nnodes", 1))
    per_node = given.get("trainer.n_gpus_per_node")
    if job.n_gpu == 0:
        return {"trainer.nnodes": nnodes, "trainer.n_gpus_per_node": 1 if per_node is None else per_node}
    per_node = job.n_gpu // nnodes if per_node is None else int(per_node)
    if nnodes * per_node != job.n_gpu:
        raise JobInvalid(
            f"verl.trainer.nnodes: {nnodes} nodes of {per_node} GPUs are {nnodes * per_node} GPUs, and n_gpu is "
            f"{job.n_gpu}",
            param="verl.trainer.nnodes",
        )
    return {"trainer.nnodes": nnodes, "trainer.n_gpus_per_node": per_node}


def _implied(job: TrainJob, model_directory: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **_passed(job),
        **_of_policy(job, given),
        **_of_optimizer(job, given),
        **_of_run(model_directory),
        **(_of_cpu() if job.n_gpu == 0 else _of_gpu(given)),
        **_of_memory(job, given),
    }


def _passed(job: TrainJob) -> dict[str, Any]:
    """Return the settings that have the value of a field as it is. Those of a critic are left out without one."""
    unread = {name for name, traits in TRAITS.items() if CRITIC in traits.needs and not job.has_critic}
    passed = {path: getattr(job, field) for path, field in PASSED.items() if field not in unread}
    changed = {"max_response_length": job.reply_tokens}
    if job.demonstrations is not None:
        # verl's schedules and its critic begin with the first step on rewards.
        changed |= {"total_steps": None if job.total_steps is None else job.total_steps - job.sft_steps}
        changed |= {"critic_warmup": (job.critic_warmup or 0) + job.sft_steps}
    return passed | {path: changed[field] for path, field in PASSED.items() if field in changed and path in passed}


def _of_policy(job: TrainJob, given: Mapping[str, Any]) -> dict[str, Any]:
    is_corrected = job.has_proximal_policy
    return {
        "algorithm.rollout_correction.rollout_is": job.rollout_is if is_corrected else None,
        # Without a correction, the policy is compared with the policy that sampled: verl's bypass mode.
        "algorithm.rollout_correction.bypass_mode": not is_corrected
        and "algorithm.rollout_correction.rollout_rs" not in given,
        f"{ACTOR}.policy_loss.rollout_correction": {"_target_": CORRECTION, **bypass_settings(job)},
        f"{ACTOR}.loss_scale_factor": job.loss_scale_factor or job.reply_tokens,
    }


def _of_optimizer(job: TrainJob, given: Mapping[str, Any]) -> dict[str, Any]:
    # verl's other model engines move the learning rate once per update, and ours once per step.
    updates = 1 if _model_engine(given) == "dp" else job.ppo_epochs * job.mini_batch_num
    return {
        **_of_schedule(job, given),
        f"{ACTOR}.optim.lr_warmup_steps": job.lr_warmup_steps * updates,
        f"{ACTOR}.optim.betas": list(job.betas),
        f"{ACTOR}.ppo_mini_batch_size": max(1, job.batch_size // job.mini_batch_num),
        f"{ACTOR}.use_dynamic_bsz": True,
        "critic.ppo_max_token_len_per_gpu": job.ppo_max_token_len,
    }


def _of_schedule(job: TrainJob, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schedule settings. Raise JobInvalid for a schedule that verl's model engine lacks."""
    model_engine, scheduler = _model_engine(given), job.lr_scheduler_type
    known = ("constant", "cosine") if model_engine == "dp" else ("constant",)
    if scheduler not in known:
        raise JobInvalid(
            f"lr_scheduler_type: verl's {model_engine} engine has no {scheduler} schedule: set it to "
            f"{' or '.join(known)}, or use engine local",
            param="lr_scheduler_type",
        )
    if model_engine != "dp":
        return {}
    return {f"{ACTOR}.optim.lr_scheduler_type": scheduler, f"{ACTOR}.optim.min_lr_ratio": job.min_lr_ratio}


def _of_run(model_directory: Path) -> dict[str, Any]:
    return {
        f"{ROLLOUT}.name": "vllm",
        f"{ROLLOUT}.nnodes": 1,
        f"{ROLLOUT}.n_gpus_per_node": 1,
        f"{ROLLOUT}.tensor_model_parallel_size": 1,
        f"{ROLLOUT}.checkpoint_engine.backend": "shm_file",
        f"{MODEL}.path": str(model_directory),
        "critic.model.path": str(model_directory),
        "trainer.logger": [],
        "trainer.val_before_train": False,
        "trainer.resume_mode": "disable",
        # Only the names of verl's own asynchronous modes are listed; any other mode was added by a user of verl.
        "trainer.v1.trainer_mode": "swarm",
        # The sampler has its own GPUs beside the trainer, unless the job asks for the same GPUs.
        "actor_rollout_ref.hybrid_engine": False,
        "transfer_queue.enable": True,
        # Rewards arrive with the episodes.
        "reward.num_workers": 0,
    }


def _of_cpu() -> dict[str, Any]:
    precision = {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
    return {
        "trainer.device": "cpu",
        f"{ACTOR}.strategy": "fsdp2",
        "critic.strategy": "fsdp2",
        f"{ACTOR}.use_torch_compile": False,
        f"{MODEL}.override_config.attn_implementation": "sdpa",
        "critic.model.override_config.attn_implementation": "sdpa",
        **{f"{model}.use_remove_padding": False for model in (MODEL, "critic.model")},
        **{f"{model}.enable_gradient_checkpointing": False for model in (MODEL, "critic.model")},
        **{f"{section}.fsdp_config.use_torch_compile": False for section in (ACTOR, REF)},
        **{f"{section}.fsdp_config.mixed_precision": dict(precision) for section in (ACTOR, REF)},
        "critic.fsdp.use_torch_compile": False,
        "critic.fsdp.mixed_precision": dict(precision),
        f"{ROLLOUT}.dtype": "float32",
        f"{ROLLOUT}.enforce_eager": True,
        f"{ROLLOUT}.enable_sleep_mode": False,
        f"{ROLLOUT}.free_cache_engine": False,
        f"{ROLLOUT}.max_num_seqs": CPU_SEQUENCES,
        "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
    }


def _of_gpu(given: Mapping[str, Any]) -> dict[str, Any]:
    colocated = bool(given.get("actor_rollout_ref.hybrid_engine", False))
    shared: dict[str, Any] = {"trainer.device": "cuda", f"{ROLLOUT}.enable_sleep_mode": colocated}
    if _model_engine(given) == "dp":
        # A sleeping process must free its GPU memory for the other, so the trainer's state waits on the host.
        offload = {f"{ACTOR}.fsdp_config.{what}_offload": colocated for what in ("param", "optimizer")}
        return {**shared, **offload, f"{ACTOR}.strategy": "fsdp2", "critic.strategy": "fsdp2"}
    return shared


def _refuse_dtype(job: TrainJob) -> None:
    if job.dtype != "auto":
        raise JobInvalid(
            f"dtype: leave it out; engine verl has settings of its own, such as verl: {{{ROLLOUT}.dtype: {job.dtype}}}",
            param="dtype",
        )


def _of_memory(job: TrainJob, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings for memory: LoRA adapters and gradient checkpointing.

    A sampler receives whole weights with the adapters merged in.
    """
    asked: dict[str, Any] = {}
    if job.enable_gradient_checkpointing is not None:
        asked |= {
            f"{model}.enable_gradient_checkpointing": job.enable_gradient_checkpointing
            for model in (MODEL, "critic.model")
        }
    if not job.lora_rank:
        return asked
    if (engine := _model_engine(given)) != "dp":
        raise JobInvalid(
            f"lora_rank: adapters are trained by FSDP alone, not by {engine}: set it to 0, or leave the strategy out",
            param="lora_rank",
        )
    return asked | {
        f"{MODEL}.lora_rank": job.lora_rank,
        f"{MODEL}.lora_alpha": job.lora_alpha,
        f"{MODEL}.target_modules": job.lora_target_modules,
        f"{MODEL}.lora.merge": True,
    }


def _set(config: DictConfig, key: str, value: Any) -> None:
    OmegaConf.update(config, key, value, merge=False, force_add=True)


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


def validate(settings: VerlSettings) -> None:
    """Raise JobInvalid with verl's reason if verl refuses the settings. Only the driver asks: verl brings tensors."""
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    config = settings.config
    try:
        validate_config(config, need_reference_policy(config), need_critic(config))
        omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
        omega_conf_to_dataclass(config.algorithm)
    except Exception as error:
        # verl and hydra raise assertions, type and value errors, and their own errors.
        reason = " ".join(str(error.__cause__ or error).split())[:300] or type(error).__name__
        raise JobInvalid(f"verl refuses this job: {reason}", param="verl") from error
    if config.actor_rollout_ref.actor.strategy == "megatron":
        _require("megatron.core", "actor_rollout_ref.actor.strategy", "megatron-core")


def _require(module: str, key: str, package: str) -> None:
    found = False
    with contextlib.suppress(ModuleNotFoundError):
        found = importlib.util.find_spec(module) is not None
    if not found:
        raise JobInvalid(f"verl.{key}: needs the package {package} on every node of the trainer", param=f"verl.{key}")
