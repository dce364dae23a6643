"""What an algorithm, a loss or a schedule lacks, or does not read, is refused by the name of the setting."""

from __future__ import annotations

from typing import Any

import pytest

from swarm.errors import JobInvalid
from swarm.job import build_job

BYPASS: dict[str, Any] = {"policy_loss": "bypass_mode"}
GDPO: dict[str, Any] = {"algorithm": "gdpo"}
REMAX: dict[str, Any] = {"algorithm": "remax"}
K1: dict[str, Any] = {**BYPASS, "rollout_rs": "token_k1"}
K3: dict[str, Any] = {**BYPASS, "rollout_rs": "token_k3"}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"algorithm": "gae", "lora_rank": 8}, "no critic beside an adapter"),
        ({"critic_lr": 1e-3}, "critic_lr is read by algorithm gae alone, not by grpo"),
        ({"lam": 0.9}, "lam is read by algorithm gae alone"),
        ({"critic_warmup": 3}, "critic_warmup is read by algorithm gae alone"),
        ({"cliprange_value": 0.2}, "cliprange_value is read by algorithm gae alone"),
        (GDPO, "needs gdpo_reward_keys"),
        ({**GDPO, "gdpo_reward_keys": []}, "gdpo_reward_keys"),
        ({**GDPO, "gdpo_reward_keys": ["a", "a"]}, "names a twice"),
        ({**GDPO, "gdpo_reward_keys": ["a"], "gdpo_reward_weights": [1, 2]}, "2 weights for 1 rewards"),
        ({"gdpo_reward_keys": ["a"]}, "read by algorithm gdpo alone, not by grpo"),
        ({"gdpo_reward_weights": [1]}, "read by algorithm gdpo alone, not by grpo"),
        ({**REMAX, "num_repeat": 1}, "needs num_repeat 2 or more"),
        ({**REMAX, "stop_rule": "enough_episodes"}, "set stop_rule to enough_non_constant_tasks or enough_tasks"),
        ({**REMAX, "batch_size": 2, "num_repeat": 2, "mini_batch_num": 3}, "batch_size * (num_repeat - 1)"),
        ({"algorithm": "optimal_token_baseline", "engine": "verl"}, "v1 trainer"),
        ({"algorithm": "tir_optimal_token_baseline", "engine": "verl"}, "engine to local"),
        ({"lr_scheduler_type": "cosine"}, "set total_steps"),
        ({"lr_scheduler": "cosine"}, "did you mean 'lr_scheduler_type'"),
        ({"policy_loss": "dro"}, "needs dro_beta"),
        ({"dro_beta": 0.1}, "dro_beta is read by policy_loss dro alone, not by vanilla"),
        ({"policy_loss": "dro", "dro_beta": 0}, "dro_beta"),
        ({"loss_type": "reinforce"}, "loss_type is read by policy_loss bypass_mode alone"),
        ({"rollout_rs": "token_k1", "rollout_rs_threshold": 2}, "rollout_rs is read by policy_loss bypass_mode alone"),
        ({**BYPASS, "loss_type": "ppo"}, "loss_type"),
        ({**BYPASS, "rollout_is": "token"}, "rollout_is has no place"),
        ({**BYPASS, "rollout_is_batch_normalize": True}, "rollout_is_batch_normalize"),
        ({**BYPASS, "loss_type": "reinforce", "rollout_is_batch_normalize": True}, "rollout_is, which is off"),
        (K1, "needs rollout_rs_threshold"),
        ({**BYPASS, "rollout_rs_threshold": 2}, "set rollout_rs"),
        ({**BYPASS, "rollout_rs": "token_k4", "rollout_rs_threshold": 2}, "token_k4 is no criterion"),
        ({**BYPASS, "rollout_rs": ",", "rollout_rs_threshold": 2}, "empty list is no criterion"),
        ({**BYPASS, "rollout_rs": "token_k2", "rollout_rs_threshold": "0.5_2"}, "'0.5_2' is no bound of token_k2"),
        ({**K1, "rollout_rs_threshold": 0.5}, "no bound of token_k1"),
        ({**K1, "rollout_rs_threshold": "2_0.5"}, "no bound of token_k1"),
        ({**K1, "rollout_rs_threshold": "0_2"}, "no bound of token_k1"),
        ({**K3, "rollout_rs_threshold": "1,2"}, "2 bounds for 1 criteria"),
        ({**K3, "rollout_rs_threshold": "much"}, "'much' is no bound"),
        ({**K3, "rollout_rs_threshold": "nan"}, "'nan' is no bound"),
    ],
)
def test_it_is_refused_by_name(given: dict[str, Any], says: str) -> None:
    with pytest.raises(JobInvalid) as refused:
        build_job(given)
    assert says in refused.value.message
