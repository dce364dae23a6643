"""Which base weights have been scored already: those of one model are the same for every arm and seed.

Place in the flow: the evaluator asks here before it scores base weights. A score is shared between runs only where
nothing differs that bears on it: model, engine, agent, environment and whatever else the job says of serving. This
module measures nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments_db import Evaluation, ExperimentStore, hash_json

TRAINS = frozenset(
    {
        *("algorithm", "project_name", "experiment_name", "seed", "batch_size", "num_repeat", "stop_rule", "min_group"),
        *("drain_timeout_s", "batch_timeout_s", "group_timeout_s", "stall_timeout_s", "max_staleness", "mixture"),
        *("total_steps", "save_freq", "lr", "lr_warmup_steps", "weight_decay", "betas", "grad_clip", "ppo_epochs"),
        *("lr_scheduler_type", "min_lr_ratio"),
        *("mini_batch_num", "ppo_max_token_len", "norm_adv_by_std_in_grpo", "gamma", "policy_loss", "clip_ratio"),
        *("clip_ratio_low", "clip_ratio_high", "clip_ratio_c", "loss_agg_mode", "loss_scale_factor", "entropy_coeff"),
        *("gdpo_reward_keys", "gdpo_reward_weights", "lam", "critic_lr", "critic_warmup", "cliprange_value"),
        *("dro_beta", "loss_type", "rollout_is_batch_normalize", "rollout_rs", "rollout_rs_threshold"),
        *("rollout_is", "rollout_is_threshold", "use_kl_loss", "kl_loss_coef", "kl_loss_type", "temperature"),
    }
)
"""Settings of a job that cannot change what base weights score; evaluation has a temperature of its own. A setting that
is not named here is taken to matter."""

KEY, MEASURED_ON = "base_key", "measured_on"
"""The details of a base score say under these names what it is the score of, and which run's server measured it."""


def key_of(job: Mapping[str, Any], program_code: str, evaluator_hash: str) -> str:
    """Equal for runs whose base weights score the same; `job` is a whole one, with its defaults."""
    served = {name: value for name, value in job.items() if name not in TRAINS}
    return hash_json({"job": served, "program": program_code, "evaluator": evaluator_hash})


def find_base_score(
    store: ExperimentStore, study_id: str, *, phase: str, split: str, key: str, weight_version: int
) -> Evaluation | None:
    """The first score of a study with this key, of weights of this version."""
    return store.find_detailed_evaluation(
        study_id, phase=phase, split=split, weight_version=weight_version, detail=(KEY, key)
    )
