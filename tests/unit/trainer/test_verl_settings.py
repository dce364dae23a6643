"""A job becomes verl's configuration: every field is honoured, every override checked, and nothing heavy loaded."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from swarm.backends.replicas.layout import SamplerLayout
from swarm.backends.verl.schema import OWNED, RESERVED
from swarm.errors import JobInvalid
from swarm.job import TrainJob
from swarm.model_path import BUNDLED_DIRECTORY


@pytest.fixture(scope="module", autouse=True)
def late_imports() -> None:
    global OmegaConf, omega_conf_to_dataclass, VerlSettings, merge_settings, read_schema, sampler_settings
    from omegaconf import OmegaConf
    from verl.utils.config import omega_conf_to_dataclass

    from swarm.backends.verl.configuration import VerlSettings, merge_settings, sampler_settings
    from swarm.backends.verl.schema import read_schema


ROLLOUT = "actor_rollout_ref.rollout"


def merged(verl: dict[str, Any] | None = None, **fields: Any) -> VerlSettings:
    return merge_settings(TrainJob(engine="verl", verl=verl or {}, **fields), BUNDLED_DIRECTORY)


def refusal(verl: dict[str, Any] | None = None, **fields: Any) -> JobInvalid:
    with pytest.raises(JobInvalid) as caught:
        merged(verl, **fields)
    return caught.value


FIELDS: dict[str, tuple[Any, str, Any]] = {
    "algorithm": ("rloo", "algorithm.adv_estimator", "rloo"),
    "gamma": (0.9, "algorithm.gamma", 0.9),
    "norm_adv_by_std_in_grpo": (False, "algorithm.norm_adv_by_std_in_grpo", False),
    "rollout_is": ("sequence", "algorithm.rollout_correction.rollout_is", "sequence"),
    "rollout_is_threshold": (3.0, "algorithm.rollout_correction.rollout_is_threshold", 3.0),
    "policy_loss": ("cispo", "actor_rollout_ref.actor.policy_loss.loss_mode", "cispo"),
    "clip_ratio": (0.3, "actor_rollout_ref.actor.clip_ratio", 0.3),
    "clip_ratio_low": (0.1, "actor_rollout_ref.actor.clip_ratio_low", 0.1),
    "clip_ratio_high": (0.28, "actor_rollout_ref.actor.clip_ratio_high", 0.28),
    "clip_ratio_c": (4.0, "actor_rollout_ref.actor.clip_ratio_c", 4.0),
    "loss_agg_mode": ("seq-mean-token-sum", "actor_rollout_ref.actor.loss_agg_mode", "seq-mean-token-sum"),
    "loss_scale_factor": (100, "actor_rollout_ref.actor.loss_scale_factor", 100),
    "entropy_coeff": (0.01, "actor_rollout_ref.actor.entropy_coeff", 0.01),
    "use_kl_loss": (True, "actor_rollout_ref.actor.use_kl_loss", True),
    "kl_loss_coef": (0.5, "actor_rollout_ref.actor.kl_loss_coef", 0.5),
    "kl_loss_type": ("k1", "actor_rollout_ref.actor.kl_loss_type", "k1"),
    "lr": (2e-5, "actor_rollout_ref.actor.optim.lr", 2e-5),
    "lr_warmup_steps": (7, "actor_rollout_ref.actor.optim.lr_warmup_steps", 7),
    "min_lr_ratio": (0.1, "actor_rollout_ref.actor.optim.min_lr_ratio", 0.1),
    "weight_decay": (0.1, "actor_rollout_ref.actor.optim.weight_decay", 0.1),
    "betas": ((0.8, 0.9), "actor_rollout_ref.actor.optim.betas", [0.8, 0.9]),
    "grad_clip": (0.5, "actor_rollout_ref.actor.optim.clip_grad", 0.5),
    "ppo_epochs": (3, "actor_rollout_ref.actor.ppo_epochs", 3),
    "ppo_max_token_len": (512, "actor_rollout_ref.actor.ppo_max_token_len_per_gpu", 512),
    "mini_batch_num": (4, "actor_rollout_ref.actor.ppo_mini_batch_size", 5),
    "batch_size": (20, "data.train_batch_size", 20),
    "num_repeat": (6, "actor_rollout_ref.rollout.n", 6),
    "temperature": (0.7, "actor_rollout_ref.rollout.temperature", 0.7),
    "max_response_length": (33, "data.max_response_length", 33),
    "max_model_len": (512, "actor_rollout_ref.rollout.max_model_len", 512),
    "seed": (11, "actor_rollout_ref.rollout.seed", 11),
    "total_steps": (9, "trainer.total_training_steps", 9),
    "project_name": ("mine", "trainer.project_name", "mine"),
    "experiment_name": ("first", "trainer.experiment_name", "first"),
}


@pytest.fixture(scope="module")
def settings_of_all_fields() -> VerlSettings:
    return merged(**{field: value for field, (value, _, _) in FIELDS.items()})


@pytest.mark.parametrize("field", FIELDS)
def test_field_of_the_job_reaches_verl_by_its_own_name(field: str, settings_of_all_fields: VerlSettings) -> None:
    _, key, expected = FIELDS[field]
    assert OmegaConf.select(settings_of_all_fields.config, key) == expected


def test_settings_that_belong_to_the_job_are_refused_by_its_fields_name() -> None:
    schema = read_schema("dp")
    for key, field in OWNED.items():
        assert schema.knows(key), f"{key} is not verl's"
        error = refusal({key: schema.default(key)})
        assert error.param == f"verl.{key}"
        assert f"set {field} instead" in error.message


def test_settings_that_the_service_makes_itself_are_refused_with_the_reason() -> None:
    schema = read_schema("dp")
    for path, reason in RESERVED.items():
        assert schema.knows(path), f"{path} is not verl's"
        error = refusal({path: 1})
        assert error.param == f"verl.{path}"
        assert reason in error.message or "set " in error.message


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("actor_rollout_ref.model.lora_adapter_pth", "actor_rollout_ref.model.lora_adapter_path"),
        (
            "actor_rollout_ref.actor.enable_gradient_checkpointing",
            "actor_rollout_ref.model.enable_gradient_checkpointing",
        ),
        ("critic.optimizer.lr", "critic.optim.lr"),
        ("nonsense", "trainer/config"),
    ],
)
def test_unknown_setting_is_named_with_what_may_have_been_meant(key: str, meant: str) -> None:
    error = refusal({key: 1})
    assert error.param == f"verl.{key}"
    assert meant in error.message


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("actor_rollout_ref.rollout.gpu_memory_utilization", "high"),
        ("critic.optim.lr", "1e-5"),
        ("actor_rollout_ref.model.use_remove_padding", 1),
        ("actor_rollout_ref.rollout.max_num_seqs", 1.5),
        ("actor_rollout_ref.model", 3),
    ],
)
def test_value_of_another_type_is_refused(key: str, value: object) -> None:
    assert refusal({key: value}).param == f"verl.{key}"


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


def test_a_number_format_is_refused_because_verl_has_settings_of_its_own_for_it() -> None:
    error = refusal({}, dtype="bfloat16")
    assert (error.param, "actor_rollout_ref.rollout.dtype: bfloat16" in error.message) == ("dtype", True)


def test_adapters_on_another_engine_than_fsdp_are_refused_by_name() -> None:
    error = refusal({"actor_rollout_ref.actor.strategy": "megatron"}, n_gpu=8, lora_rank=8)
    assert (error.param, "not by megatron" in error.message) == ("lora_rank", True)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("actor_rollout_ref.rollout.enable_sleep_mode", False),
        ("actor_rollout_ref.actor.fsdp_config.mixed_precision.reduce_dtype", "bf16"),
        ("actor_rollout_ref.model.override_config.attn_implementation", "eager"),
        ("actor_rollout_ref.actor.optim.override_optimizer_config", {"fused": True}),
    ],
)
def test_settings_that_only_verls_classes_or_libraries_know_are_taken(key: str, value: object) -> None:
    config = merged({key: value}).config
    found = OmegaConf.select(config, key)
    assert (OmegaConf.to_container(found) if OmegaConf.is_config(found) else found) == value


@pytest.mark.parametrize(
    ("verl", "fields"),
    [
        ({"actor_rollout_ref.model.use_remove_padding": True}, {}),
        ({"actor_rollout_ref.model.exclude_modules": "lm_head"}, {"lora_rank": 8}),
        ({"actor_rollout_ref.actor.strategy": "megatron"}, {"n_gpu": 8}),
        ({"model_engine": "megatron", "actor_rollout_ref.actor.megatron.tensor_model_parallel_size": 2}, {"n_gpu": 8}),
        ({"actor_rollout_ref.hybrid_engine": True}, {"n_gpu": 8}),
        ({"trainer.nnodes": 4}, {"n_gpu": 32}),
        (
            {"actor_rollout_ref.rollout.checkpoint_engine.backend": "nccl", "actor_rollout_ref.rollout.nnodes": 2},
            {"n_gpu": 8},
        ),
        ({"actor_rollout_ref.actor.optim.num_cycles": 0.5}, {"lr_scheduler_type": "cosine", "total_steps": 10}),
    ],
)
def test_features_are_reached_by_verls_names(verl: dict[str, Any], fields: dict[str, Any]) -> None:
    config = merged(verl, **fields).config
    for key, value in verl.items():
        assert key == "model_engine" or OmegaConf.select(config, key) == value


@pytest.mark.parametrize(
    ("verl", "fields", "says"),
    [
        ({"actor_rollout_ref.actor.strategy": "megatron"}, {}, "only fsdp2"),
        ({"actor_rollout_ref.actor.strategy": "fsdp"}, {}, "only fsdp2"),
        ({"actor_rollout_ref.hybrid_engine": True}, {}, "cannot sleep"),
        ({"actor_rollout_ref.rollout.checkpoint_engine.backend": "nccl"}, {}, "nccl needs GPUs"),
        ({"actor_rollout_ref.model.use_liger": True}, {}, "need a GPU"),
        ({"actor_rollout_ref.rollout.name": "sglang"}, {}, "the sampler is vLLM"),
        ({"actor_rollout_ref.rollout.checkpoint_engine.backend": "naive"}, {}, "shm_file or nccl"),
        ({"actor_rollout_ref.rollout.nnodes": 2}, {"n_gpu": 8}, "set nccl"),
        ({"actor_rollout_ref.model.lora.merge": False}, {"lora_rank": 8}, "adapters merged"),
        ({"actor_rollout_ref.rollout.tensor_model_parallel_size": 2}, {"n_gpu": 2}, "do not divide"),
        ({"algorithm.use_kl_in_reward": True}, {}, "use_kl_loss"),
        ({"algorithm.rollout_correction.bypass_mode": True}, {"rollout_is": "token"}, "rollout_is to off"),
        (
            {"algorithm.rollout_correction.rollout_rs": "token_k1"},
            {"policy_loss": "bypass_mode"},
            "set rollout_rs instead",
        ),
        (
            {"algorithm.rollout_correction.bypass_mode": False},
            {"policy_loss": "bypass_mode"},
            "policy_loss bypass_mode is just that",
        ),
        ({"trainer.nnodes": 3}, {"n_gpu": 8}, "n_gpu is 8"),
        ({"model_engine": "tpu"}, {}, "must be one of"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line(verl: dict[str, Any], fields: dict[str, Any], says: str) -> None:
    error = refusal(verl, **fields)
    assert says in error.message
    assert "\n" not in error.message
    assert error.param is not None and error.param.startswith("verl.")


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
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor).policy_loss
    assert actor.loss_mode == bypass.pop("policy_loss")
    assert {name: actor.rollout_correction.get(name) for name in bypass} == bypass
    dro = omega_conf_to_dataclass(merged(policy_loss="dro", dro_beta=0.2).config.actor_rollout_ref.actor)
    assert (dro.policy_loss.loss_mode, dro.policy_loss.dro_beta) == ("dro", 0.2)


def test_ranks_are_the_jobs_gpus_and_on_the_cpu_the_slots_asked_for() -> None:
    assert merged().ranks == 1
    assert merged({"trainer": {"n_gpus_per_node": 2}}).ranks == 2
    assert merged(n_gpu=4).ranks == 4
    of_nodes = merged({"trainer.nnodes": 4}, n_gpu=32)
    assert (of_nodes.ranks, of_nodes.config.trainer.n_gpus_per_node) == (32, 8)


def test_sampler_is_cut_from_the_same_configuration() -> None:
    rollout = "actor_rollout_ref.rollout"
    on_cpu = sampler_settings(merged(seed=5, max_model_len=256))
    assert on_cpu.layout == SamplerLayout(device="cpu")
    assert (on_cpu.dtype, on_cpu.seed, on_cpu.max_model_len) == ("float32", 5, 256)
    assert "gpu_memory_utilization" not in on_cpu.flags
    on_gpu = sampler_settings(
        merged(
            {
                f"{rollout}.n_gpus_per_node": 8,
                f"{rollout}.tensor_model_parallel_size": 2,
                f"{rollout}.gpu_memory_utilization": 0.8,
                f"{rollout}.engine_kwargs.vllm": {"kv_cache_dtype": "fp8"},
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
    assert sampler_settings(settings).layout.colocated
    assert sampler_settings(settings).flags["enable_sleep_mode"] is True
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


@pytest.mark.parametrize("verl", [{}, {"model_engine": "veomni"}])
def test_a_cosine_schedule_reaches_verl_where_verl_has_one(verl: dict[str, Any]) -> None:
    gpus = {"n_gpu": 8} if verl else {}
    config = merged(verl, lr_scheduler_type="cosine", min_lr_ratio=0.2, total_steps=9, **gpus).config
    optim = config.actor_rollout_ref.actor.optim
    assert (optim.lr_scheduler_type, optim.min_lr_ratio) == ("cosine", 0.2)


@pytest.mark.parametrize(
    ("verl", "scheduler", "says"),
    [
        ({}, "linear", "dp engine has no linear schedule: set it to constant or cosine"),
        ({"model_engine": "megatron"}, "cosine", "megatron engine has no cosine schedule: set it to constant, or use"),
    ],
)
def test_a_schedule_that_verl_has_not_is_refused_by_name(verl: dict[str, Any], scheduler: str, says: str) -> None:
    error = refusal(verl, lr_scheduler_type=scheduler, total_steps=9, n_gpu=8)
    assert says in error.message
    assert error.param == "lr_scheduler_type"
