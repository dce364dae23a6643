"""The scores of base weights, measured once for all arms and seeds that share them.

Place in the flow: the evaluator asks here before it scores base weights. Runs share a score only if everything that
affects it is the same: model, engine, agent, environment and the job's settings for serving. This module measures
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments_db import DetailedEvaluation, ExperimentStore, hash_json
from researcher.phases import KEY

TRAINS = frozenset(
    {
        *(
            "algorithm",
            "project_name",
            "experiment_name",
            "resume_from",
            "seed",
            "batch_size",
            "num_repeat",
            "stop_rule",
            "min_group",
        ),
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
"""The settings of a job that cannot change the score of base weights.

The temperature is one of them, because evaluation has its own. A setting that is not named here counts as relevant."""


def key_of(job: Mapping[str, Any], program_code: str, evaluator_hash: str) -> str:
    """Return a key that is equal for runs whose base weights score the same.

    `job` is a whole job, with its defaults.
    """
    served = {name: value for name, value in job.items() if name not in TRAINS}
    return hash_json({"job": served, "program": program_code, "evaluator": evaluator_hash})


def find_base_score(
    store: ExperimentStore, study_id: str, *, phase: str, split: str, key: str, weight_version: int
) -> DetailedEvaluation | None:
    """Return the first score of a study with this key and weight version."""
    return store.find_detailed_evaluation(
        study_id, phase=phase, split=split, weight_version=weight_version, detail=(KEY, key)
    )
