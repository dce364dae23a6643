"""The owners of verl's settings: a field of the job, or the service itself.

Place in the flow: asked by configuration.py for every override. It contains tables and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

OWNED: Final[Mapping[str, str]] = {
    "algorithm.adv_estimator": "algorithm",
    "algorithm.gamma": "gamma",
    "algorithm.lam": "lam",
    "critic.optim.lr": "critic_lr",
    "critic.cliprange_value": "cliprange_value",
    "trainer.critic_warmup": "critic_warmup",
    "algorithm.gdpo_reward_keys": "gdpo_reward_keys",
    "algorithm.gdpo_reward_weights": "gdpo_reward_weights",
    "algorithm.norm_adv_by_std_in_grpo": "norm_adv_by_std_in_grpo",
    "algorithm.rollout_correction.rollout_is": "rollout_is",
    "algorithm.rollout_correction.rollout_is_threshold": "rollout_is_threshold",
    "algorithm.rollout_correction.loss_type": "loss_type",
    "actor_rollout_ref.model.path": "model",
    "actor_rollout_ref.model.lora_rank": "lora_rank",
    "actor_rollout_ref.model.lora_alpha": "lora_alpha",
    "actor_rollout_ref.model.target_modules": "lora_target_modules",
    "actor_rollout_ref.model.enable_gradient_checkpointing": "enable_gradient_checkpointing",
    "actor_rollout_ref.actor.optim.lr": "lr",
    "actor_rollout_ref.actor.optim.lr_warmup_steps": "lr_warmup_steps",
    "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio": "lr_warmup_steps",
    "actor_rollout_ref.actor.optim.lr_scheduler_type": "lr_scheduler_type",
    "actor_rollout_ref.actor.optim.warmup_style": "lr_scheduler_type",
    "actor_rollout_ref.actor.optim.min_lr_ratio": "min_lr_ratio",
    "actor_rollout_ref.actor.optim.total_training_steps": "total_steps",
    "actor_rollout_ref.actor.optim.weight_decay": "weight_decay",
    "actor_rollout_ref.actor.optim.betas": "betas",
    "actor_rollout_ref.actor.optim.clip_grad": "grad_clip",
    "actor_rollout_ref.actor.grad_clip": "grad_clip",
    "actor_rollout_ref.actor.policy_loss.loss_mode": "policy_loss",
    "actor_rollout_ref.actor.policy_loss.dro_beta": "dro_beta",
    "actor_rollout_ref.actor.clip_ratio": "clip_ratio",
    "actor_rollout_ref.actor.clip_ratio_low": "clip_ratio_low",
    "actor_rollout_ref.actor.clip_ratio_high": "clip_ratio_high",
    "actor_rollout_ref.actor.clip_ratio_c": "clip_ratio_c",
    "actor_rollout_ref.actor.loss_agg_mode": "loss_agg_mode",
    "actor_rollout_ref.actor.loss_scale_factor": "loss_scale_factor",
    "actor_rollout_ref.actor.entropy_coeff": "entropy_coeff",
    "actor_rollout_ref.actor.use_kl_loss": "use_kl_loss",
    "actor_rollout_ref.actor.kl_loss_coef": "kl_loss_coef",
    "actor_rollout_ref.actor.kl_loss_type": "kl_loss_type",
    "actor_rollout_ref.actor.ppo_epochs": "ppo_epochs",
    "actor_rollout_ref.actor.ppo_mini_batch_size": "mini_batch_num",
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": "ppo_max_token_len",
    "actor_rollout_ref.actor.data_loader_seed": "seed",
    "actor_rollout_ref.rollout.n": "num_repeat",
    "actor_rollout_ref.rollout.temperature": "temperature",
    "actor_rollout_ref.rollout.max_model_len": "max_model_len",
    "actor_rollout_ref.rollout.response_length": "max_response_length",
    "actor_rollout_ref.rollout.seed": "seed",
    "data.train_batch_size": "batch_size",
    "data.max_response_length": "max_response_length",
    "trainer.project_name": "project_name",
    "trainer.experiment_name": "experiment_name",
    "trainer.total_training_steps": "total_steps",
    "trainer.save_freq": "save_freq",
    "trainer.device": "n_gpu",
}

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
