"""A job becomes verl's configuration: every field is honoured, every override checked, and nothing heavy loaded."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from late import Late

from swarm.backends.replicas.adapter import SamplerLayout
from swarm.errors import JobInvalid
from swarm.job import TrainJob
from swarm.model_path import BUNDLED_DIRECTORY

omegaconf, verl_config = Late("omegaconf"), Late("verl.utils.config")
configuration, schemas = Late("swarm.backends.verl.configuration"), Late("swarm.backends.verl.schema")

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"


def merged(verl: dict[str, Any] | None = None, **fields: Any) -> Any:
    return configuration.merge_settings(TrainJob(engine="verl", verl=verl or {}, **fields), BUNDLED_DIRECTORY)


def refusal(verl: dict[str, Any] | None = None, **fields: Any) -> JobInvalid:
    with pytest.raises(JobInvalid) as caught:
        merged(verl, **fields)
    return caught.value


BYPASS = {"policy_loss": "bypass_mode"}
FIELDS: dict[str, tuple[Any, str, Any]] = {
    "algorithm": ("rloo", "algorithm.adv_estimator", "rloo"),
    "gamma": (0.9, "algorithm.gamma", 0.9),
    "norm_adv_by_std_in_grpo": (False, "algorithm.norm_adv_by_std_in_grpo", False),
    "rollout_is": ("sequence", "algorithm.rollout_correction.rollout_is", "sequence"),
    "rollout_is_threshold": (3.0, "algorithm.rollout_correction.rollout_is_threshold", 3.0),
    "policy_loss": ("cispo", f"{ACTOR}.policy_loss.loss_mode", "cispo"),
    "clip_ratio": (0.3, f"{ACTOR}.clip_ratio", 0.3),
    "clip_ratio_low": (0.1, f"{ACTOR}.clip_ratio_low", 0.1),
    "clip_ratio_high": (0.28, f"{ACTOR}.clip_ratio_high", 0.28),
    "clip_ratio_c": (4.0, f"{ACTOR}.clip_ratio_c", 4.0),
    "loss_agg_mode": ("seq-mean-token-sum", f"{ACTOR}.loss_agg_mode", "seq-mean-token-sum"),
    "loss_scale_factor": (100, f"{ACTOR}.loss_scale_factor", 100),
    "entropy_coeff": (0.01, f"{ACTOR}.entropy_coeff", 0.01),
    "use_kl_loss": (True, f"{ACTOR}.use_kl_loss", True),
    "kl_loss_coef": (0.5, f"{ACTOR}.kl_loss_coef", 0.5),
    "kl_loss_type": ("k1", f"{ACTOR}.kl_loss_type", "k1"),
    "lr": (2e-5, f"{ACTOR}.optim.lr", 2e-5),
    "lr_warmup_steps": (7, f"{ACTOR}.optim.lr_warmup_steps", 7),
    "min_lr_ratio": (0.1, f"{ACTOR}.optim.min_lr_ratio", 0.1),
    "weight_decay": (0.1, f"{ACTOR}.optim.weight_decay", 0.1),
    "betas": ((0.8, 0.9), f"{ACTOR}.optim.betas", [0.8, 0.9]),
    "grad_clip": (0.5, f"{ACTOR}.optim.clip_grad", 0.5),
    "ppo_epochs": (3, f"{ACTOR}.ppo_epochs", 3),
    "ppo_max_token_len": (512, f"{ACTOR}.ppo_max_token_len_per_gpu", 512),
    "mini_batch_num": (4, f"{ACTOR}.ppo_mini_batch_size", 5),
    "batch_size": (20, "data.train_batch_size", 20),
    "num_repeat": (6, f"{ROLLOUT}.n", 6),
    "temperature": (0.7, f"{ROLLOUT}.temperature", 0.7),
    "max_response_length": (33, "data.max_response_length", 33),
    "max_model_len": (512, f"{ROLLOUT}.max_model_len", 512),
    "seed": (11, f"{ROLLOUT}.seed", 11),
    "total_steps": (9, "trainer.total_training_steps", 9),
    "project_name": ("mine", "trainer.project_name", "mine"),
    "experiment_name": ("first", "trainer.experiment_name", "first"),
}


@pytest.fixture(scope="module")
def settings_of_all_fields() -> Any:
    # A job that states everything may have settings that its algorithm or its loss does not read.
    return merged(
        **TrainJob().model_dump(exclude={"engine", "verl"}) | {name: each[0] for name, each in FIELDS.items()}
    )


@pytest.mark.parametrize("field", FIELDS)
def test_field_of_the_job_reaches_verl_by_its_own_name(field: str, settings_of_all_fields: Any) -> None:
    _, key, expected = FIELDS[field]
    assert omegaconf.OmegaConf.select(settings_of_all_fields.config, key) == expected


def test_settings_of_the_job_and_of_the_service_are_refused_with_its_field_or_the_reason() -> None:
    schema = schemas.read_schema("dp")
    owned = {key: (f"set {field} instead", schema.default(key)) for key, field in schemas.OWNED.items()}
    reserved = {path: (reason, 1) for path, reason in schemas.RESERVED.items()}
    for key, (reason, value) in {**reserved, **owned}.items():
        assert schema.knows(key), f"{key} is not verl's"
        error = refusal({key: value})
        assert error.param == f"verl.{key}"
        assert reason in error.message or (key in reserved and "set " in error.message)


def test_nested_and_dotted_overrides_are_the_same() -> None:
    nested = merged({"actor_rollout_ref": {"model": {"trust_remote_code": True, "use_shm": True}}}).config
    dotted = merged(
        {"actor_rollout_ref.model.trust_remote_code": True, "actor_rollout_ref": {"model.use_shm": True}}
    ).config
    assert nested == dotted
    assert nested.actor_rollout_ref.model.use_shm is True


def test_adapters_and_gradient_checkpointing_are_set_by_the_fields_of_the_job() -> None:
    plain = merged({}).config.actor_rollout_ref.model
    assert (plain.lora_rank, plain.enable_gradient_checkpointing) == (0, False)
    config = merged(
        {}, lora_rank=8, lora_alpha=32, lora_target_modules=["q_proj"], enable_gradient_checkpointing=True
    ).config
    model = config.actor_rollout_ref.model
    assert (model.lora_rank, model.lora_alpha, list(model.target_modules), model.lora.merge) == (
        8,
        32,
        ["q_proj"],
        True,
    )
    assert model.enable_gradient_checkpointing and config.critic.model.enable_gradient_checkpointing


@pytest.mark.parametrize(
    ("verl", "fields"),
    [
        ({"actor_rollout_ref.model.use_remove_padding": True}, {}),
        ({"actor_rollout_ref.model.exclude_modules": "lm_head"}, {"lora_rank": 8}),
        ({f"{ACTOR}.strategy": "megatron"}, {"n_gpu": 8}),
        ({"model_engine": "megatron", f"{ACTOR}.megatron.tensor_model_parallel_size": 2}, {"n_gpu": 8}),
        ({"actor_rollout_ref.hybrid_engine": True}, {"n_gpu": 8}),
        ({"trainer.nnodes": 4}, {"n_gpu": 32}),
        (
            {f"{ROLLOUT}.checkpoint_engine.backend": "nccl", f"{ROLLOUT}.nnodes": 2},
            {"n_gpu": 8},
        ),
        ({f"{ACTOR}.optim.num_cycles": 0.5}, {"lr_scheduler_type": "cosine", "total_steps": 10}),
        # Settings that only verl's classes or its libraries know.
        ({f"{ROLLOUT}.enable_sleep_mode": False}, {}),
        ({f"{ACTOR}.fsdp_config.mixed_precision.reduce_dtype": "bf16"}, {}),
        ({"actor_rollout_ref.model.override_config.attn_implementation": "eager"}, {}),
        ({f"{ACTOR}.optim.override_optimizer_config": {"fused": True}}, {}),
    ],
)
def test_features_are_reached_by_verls_names(verl: dict[str, Any], fields: dict[str, Any]) -> None:
    config = merged(verl, **fields).config
    for key, value in verl.items():
        assert key == "model_engine" or omegaconf.OmegaConf.select(config, key) == value


@pytest.mark.parametrize(
    ("verl", "fields", "says"),
    [
        # Names that verl does not know, with what may have been meant.
        ({"actor_rollout_ref.model.lora_adapter_pth": 1}, {}, "actor_rollout_ref.model.lora_adapter_path"),
        ({f"{ACTOR}.enable_gradient_checkpointing": 1}, {}, "actor_rollout_ref.model.enable_gradient_checkpointing"),
        ({"critic.optimizer.lr": 1}, {}, "critic.optim.lr"),
        ({"nonsense": 1}, {}, "trainer/config"),
        # Values of another type.
        ({f"{ROLLOUT}.gpu_memory_utilization": "high"}, {}, "must be a number"),
        ({"actor_rollout_ref.model.use_remove_padding": 1}, {}, "must be of type bool"),
        ({f"{ROLLOUT}.max_num_seqs": 1.5}, {}, "must be of type int"),
        ({"actor_rollout_ref.model": 3}, {}, "section of settings"),
        # What cannot be done here.
        ({f"{ACTOR}.strategy": "megatron"}, {}, "only fsdp2"),
        ({f"{ACTOR}.strategy": "fsdp"}, {}, "only fsdp2"),
        ({"actor_rollout_ref.hybrid_engine": True}, {}, "cannot sleep"),
        ({f"{ROLLOUT}.checkpoint_engine.backend": "nccl"}, {}, "nccl needs GPUs"),
        ({"actor_rollout_ref.model.use_liger": True}, {}, "need a GPU"),
        ({f"{ROLLOUT}.name": "sglang"}, {}, "the sampler is vLLM"),
        ({f"{ROLLOUT}.checkpoint_engine.backend": "naive"}, {}, "shm_file or nccl"),
        ({f"{ROLLOUT}.nnodes": 2}, {"n_gpu": 8}, "set nccl"),
        ({"actor_rollout_ref.model.lora.merge": False}, {"lora_rank": 8}, "adapters merged"),
        ({f"{ROLLOUT}.tensor_model_parallel_size": 2}, {"n_gpu": 2}, "do not divide"),
        ({"algorithm.use_kl_in_reward": True}, {}, "use_kl_loss"),
        ({"algorithm.rollout_correction.bypass_mode": True}, {"rollout_is": "token"}, "rollout_is to off"),
        ({"algorithm.rollout_correction.rollout_rs": "token_k1"}, BYPASS, "set rollout_rs instead"),
        ({"algorithm.rollout_correction.bypass_mode": False}, BYPASS, "policy_loss bypass_mode is just that"),
        ({"trainer.nnodes": 3}, {"n_gpu": 8}, "n_gpu is 8"),
        ({"model_engine": "tpu"}, {}, "must be one of"),
        ({f"{ACTOR}.strategy": "veomni"}, {"n_gpu": 8}, "must be one of fsdp, fsdp2, megatron"),
    ],
)
def test_what_cannot_be_set_is_refused_in_one_line(verl: dict[str, Any], fields: dict[str, Any], says: str) -> None:
    error = refusal(verl, **fields)
    assert says in error.message
    assert "\n" not in error.message
    assert error.param is not None and error.param.startswith(f"verl.{next(iter(verl)).split('.')[0]}")


LINEAR: dict[str, Any] = {"lr_scheduler_type": "linear", "total_steps": 9}


@pytest.mark.parametrize(
    ("verl", "fields", "says"),
    [
        ({}, {"dtype": "bfloat16"}, f"{ROLLOUT}.dtype: bfloat16"),
        ({f"{ACTOR}.strategy": "megatron"}, {"lora_rank": 8, "n_gpu": 8}, "not by megatron"),
        ({}, LINEAR, "dp engine has no linear schedule: set it to constant or cosine"),
        (
            {"model_engine": "megatron"},
            {**LINEAR, "lr_scheduler_type": "cosine", "n_gpu": 8},
            "megatron engine has no cosine schedule: set it to constant, or use",
        ),
    ],
    ids=["dtype", "lora_rank", "linear", "cosine"],
)
def test_a_field_that_verl_cannot_honour_is_refused_by_its_name(
    verl: dict[str, Any], fields: dict[str, Any], says: str
) -> None:
    error = refusal(verl, **fields)
    assert says in error.message
    assert error.param in fields


def test_the_settings_of_a_critic_are_those_of_the_job() -> None:
    config = merged(algorithm="gae", lam=0.9, critic_lr=1e-4, critic_warmup=3, cliprange_value=0.2).config
    assert (config.algorithm.lam, config.critic.optim.lr) == (0.9, 1e-4)
    assert (config.trainer.critic_warmup, config.critic.cliprange_value) == (3, 0.2)


def test_named_rewards_are_learned_from_on_verl_as_well() -> None:
    algorithm = merged(algorithm="gdpo", gdpo_reward_keys=["a", "b"], gdpo_reward_weights=[1, 2]).config.algorithm
    assert (algorithm.adv_estimator, list(algorithm.gdpo_reward_keys)) == ("gdpo", ["a", "b"])
    assert list(algorithm.gdpo_reward_weights) == [1, 2]


def test_what_a_loss_of_its_own_settings_reads_reaches_verls_actor() -> None:
    bypass: dict[str, Any] = {
        "policy_loss": "bypass_mode",
        "loss_type": "reinforce",
        "rollout_is": "sequence",
        "rollout_is_threshold": 3.0,
        "rollout_is_batch_normalize": True,
        "rollout_rs": "token_k1,token_k3",
        "rollout_rs_threshold": "0.5_2,0.1",
    }
    config = merged(**bypass).config
    correction = config.algorithm.rollout_correction
    assert (correction.bypass_mode, correction.rollout_is, correction.rollout_rs) == (True, None, None)
    actor = verl_config.omega_conf_to_dataclass(config.actor_rollout_ref.actor).policy_loss
    assert actor.loss_mode == bypass.pop("policy_loss")
    assert {name: actor.rollout_correction.get(name) for name in bypass} == bypass
    dro = verl_config.omega_conf_to_dataclass(merged(policy_loss="dro", dro_beta=0.2).config.actor_rollout_ref.actor)
    assert (dro.policy_loss.loss_mode, dro.policy_loss.dro_beta) == ("dro", 0.2)


def test_ranks_are_the_jobs_gpus_and_on_the_cpu_the_slots_asked_for() -> None:
    assert merged().ranks == 1
    assert merged({"trainer": {"n_gpus_per_node": 2}}).ranks == 2
    assert merged(n_gpu=4).ranks == 4
    of_nodes = merged({"trainer.nnodes": 4}, n_gpu=32)
    assert (of_nodes.ranks, of_nodes.config.trainer.n_gpus_per_node) == (32, 8)


def test_sampler_is_cut_from_the_same_configuration() -> None:
    on_cpu = configuration.sampler_settings(merged(seed=5, max_model_len=256))
    assert on_cpu.layout == SamplerLayout(device="cpu")
    assert (on_cpu.dtype, on_cpu.seed, on_cpu.max_model_len) == ("float32", 5, 256)
    assert "gpu_memory_utilization" not in on_cpu.flags
    on_gpu = configuration.sampler_settings(
        merged(
            {
                f"{ROLLOUT}.n_gpus_per_node": 8,
                f"{ROLLOUT}.tensor_model_parallel_size": 2,
                f"{ROLLOUT}.gpu_memory_utilization": 0.8,
                f"{ROLLOUT}.engine_kwargs.vllm": {"kv_cache_dtype": "fp8"},
            },
            n_gpu=8,
        )
    )
    assert on_gpu.layout == SamplerLayout(replicas=4, tensor_parallel=2, device="cuda")
    assert on_gpu.dtype == "bfloat16"
    assert on_gpu.flags["gpu_memory_utilization"] == 0.8
    assert on_gpu.flags["kv_cache_dtype"] == "fp8"


def test_sampler_that_shares_the_trainers_gpus_can_sleep() -> None:
    settings = merged({"actor_rollout_ref.hybrid_engine": True}, n_gpu=2)
    assert configuration.sampler_settings(settings).layout.colocated
    assert configuration.sampler_settings(settings).flags["enable_sleep_mode"] is True
    assert settings.config.actor_rollout_ref.actor.fsdp_config.param_offload is True


def test_a_job_is_checked_without_tensors() -> None:
    code = (
        "import sys; from swarm.job import TrainJob;"
        "from swarm.backends.verl.configuration import merge_settings;"
        "from swarm.backends.verl.engine import VerlTrainer, build_driver;"
        "from swarm.model_path import BUNDLED_DIRECTORY;"
        "merge_settings(TrainJob(engine='verl'), BUNDLED_DIRECTORY);"
        "print(*[name for name in ('torch', 'verl', 'ray', 'transformers', 'vllm') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == ""


def test_a_cosine_schedule_reaches_verl() -> None:
    config = merged({}, lr_scheduler_type="cosine", min_lr_ratio=0.2, total_steps=9).config
    optim = config.actor_rollout_ref.actor.optim
    assert (optim.lr_scheduler_type, optim.min_lr_ratio) == ("cosine", 0.2)
