"""What an algorithm, a loss or a schedule lacks, or does not read, is refused by the name of the setting."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter

from swarm.errors import BadRequest, JobInvalid
from swarm.job import TRAITS, TrainJob, build_job
from swarm.live_settings import JobTimeline, check_effect

BYPASS: dict[str, Any] = {"policy_loss": "bypass_mode"}
DEMOS = {"demonstrations": "demos.jsonl", "sft_steps": 5}
GDPO: dict[str, Any] = {"algorithm": "gdpo"}
REMAX: dict[str, Any] = {"algorithm": "remax"}
K1: dict[str, Any] = {**BYPASS, "rollout_rs": "token_k1"}
K3: dict[str, Any] = {**BYPASS, "rollout_rs": "token_k3"}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"algorithm": "gae", "lora_rank": 8}, "no critic beside an adapter"),
        (GDPO, "needs gdpo_reward_keys"),
        ({**GDPO, "gdpo_reward_keys": []}, "gdpo_reward_keys"),
        ({**GDPO, "gdpo_reward_keys": ["a", "a"]}, "names a twice"),
        ({**GDPO, "gdpo_reward_keys": ["a"], "gdpo_reward_weights": [1, 2]}, "2 weights for 1 rewards"),
        ({**REMAX, "num_repeat": 1}, "needs num_repeat 2 or more"),
        ({**REMAX, "stop_rule": "enough_episodes"}, "set stop_rule to enough_non_constant_tasks or enough_tasks"),
        ({**REMAX, "batch_size": 2, "num_repeat": 2, "mini_batch_num": 3}, "batch_size * (num_repeat - 1)"),
        ({"algorithm": "optimal_token_baseline", "engine": "verl"}, "v1 trainer"),
        ({"algorithm": "tir_optimal_token_baseline", "engine": "verl"}, "engine to local"),
        ({"lr_scheduler_type": "cosine"}, "set total_steps"),
        ({**DEMOS, "total_steps": 4}, "sft_steps (5) must not exceed total_steps (4)"),
        ({**DEMOS, "engine": "verl", "sft_coeff": 0.1}, "sft_coeff: engine verl has no supervised loss beside"),
        ({**DEMOS, "use_kl_loss": True}, "use_kl_loss would hold the model to its weights before the sft_steps"),
        ({"lr_scheduler": "cosine"}, "did you mean 'lr_scheduler_type'"),
        ({"policy_loss": "dro"}, "needs dro_beta"),
        ({"policy_loss": "dro", "dro_beta": 0}, "dro_beta"),
        ({**BYPASS, "loss_type": "ppo"}, "loss_type"),
        ({**BYPASS, "rollout_is": "token"}, "rollout_is has no place"),
        ({**BYPASS, "rollout_rs": "token_k4", "rollout_rs_threshold": 2}, "token_k4 is no criterion"),
        ({**BYPASS, "rollout_rs": ",", "rollout_rs_threshold": 2}, "empty list is no criterion"),
        ({**BYPASS, "rollout_rs": "token_k2", "rollout_rs_threshold": "0.5_2"}, "'0.5_2' is no bound of token_k2"),
        ({**K1, "rollout_rs_threshold": 0.5}, "no bound of token_k1"),
        ({**K1, "rollout_rs_threshold": "2_0.5"}, "no bound of token_k1"),
        ({**K1, "rollout_rs_threshold": "0_2"}, "no bound of token_k1"),
        ({**K3, "rollout_rs_threshold": "1,2"}, "2 bounds for 1 criteria"),
        ({**K3, "rollout_rs_threshold": "much"}, "'much' is no bound"),
        ({**K3, "rollout_rs_threshold": "nan"}, "'nan' is no bound"),
        ({**TrainJob().model_dump(), **K1}, "needs rollout_rs_threshold"),
    ],
)
def test_it_is_refused_by_name(given: dict[str, Any], says: str) -> None:
    with pytest.raises(JobInvalid) as refused:
        build_job(given)
    assert says in refused.value.message


GIVEN: dict[str, Any] = {
    "sampler": "local", "sampler_options": {"seed": 1}, "share_prefixes": "off",
    "keep_last": 2, "keep_best": 1, "keep_best_metric": "-actor/entropy", "eval_episodes": 200, "eval_env": "sort",
    "eval_timeout_s": 9, "min_lr_ratio": 0.1, "lora_alpha": 32, "lora_target_modules": "all-linear",
    "norm_adv_by_std_in_grpo": True, "gamma": 0.9, "lam": 0.9, "critic_lr": 1e-3, "critic_warmup": 3,
    "cliprange_value": 0.2, "gdpo_reward_keys": ["right"], "gdpo_reward_weights": [2.0], "clip_ratio": 0.2,
    "clip_ratio_low": 0.1, "clip_ratio_high": 0.28, "clip_ratio_c": 4, "loss_scale_factor": 64,
    "rollout_is_threshold": 2.0, "dro_beta": 0.1, "loss_type": "ppo_clip", "rollout_is_batch_normalize": True,
    "rollout_rs": "token_k1", "rollout_rs_threshold": 2, "kl_loss_coef": 0.001, "kl_loss_type": "k1",
    "sft_steps": 5, "sft_batch_size": 8, "sft_lr": 1e-4, "sft_coeff": 0.1, "sft_held_out": 0.2,
}  # fmt: skip
"""A value of every setting that needs another one, its default where it has one."""
UNMET: dict[str, dict[str, Any]] = {
    "algorithm": {"algorithm": "opo"}, "policy_loss": {"policy_loss": "gpg"}, "engine": {"engine": "fake"},
    "loss_type": {"policy_loss": "bypass_mode", "loss_type": "reinforce", "rollout_is": "off"},
}  # fmt: skip
"""Settings by which a need is not met that the default of a job would meet."""


def complete(name: str) -> dict[str, Any]:
    """The least job in which the setting has an effect."""
    of_gdpo = {"gdpo_reward_keys": ["right"]} if name == "gdpo_reward_weights" else {}
    return {"total_steps": 9, **of_gdpo, name: GIVEN[name], **TrainJob().find_lacking(name)}


def test_every_setting_that_needs_another_one_is_tried_here() -> None:
    assert GIVEN.keys() == {name for name, traits in TRAITS.items() if traits.needs and not traits.is_spare}


@pytest.mark.parametrize("name", GIVEN)
def test_it_is_refused_without_what_it_needs_by_the_line_that_adds_it(name: str) -> None:
    assert build_job(complete(name)).why_without_effect(name) is None
    usual = TrainJob().resolve()
    for need in TRAITS[name].needs:
        other = UNMET[need.setting] if need.is_met(getattr(usual, need.setting)) else {}
        with pytest.raises(JobInvalid) as refused:
            build_job({**other, name: GIVEN[name]})
        assert f"{name} has no effect while" in refused.value.message
        assert f"`{need.setting}: {str(need.adds).lower()}`" in refused.value.message


@pytest.mark.parametrize(
    ("job", "acts"),
    [
        ({"mini_batch_num": 2}, True),
        ({"ppo_epochs": 2}, True),
        ({"mini_batch_num": 1, "ppo_epochs": 1}, False),
        ({"max_staleness": 1}, False),
        ({"max_staleness": 1, "rollout_is": "off"}, True),
        ({"max_staleness": 1, "policy_loss": "bypass_mode"}, True),
        ({"policy_loss": "gspo"}, False),
        ({"sampler": "vllm", "n_gpu": 1}, True),
        ({"engine": "verl", "n_gpu": 2}, True),
        ({"engine": "verl", "n_gpu": 2, "rollout_is": "token"}, False),
        ({"engine": "fake"}, False),
    ],
)
def test_clip_range_acts_only_where_the_policy_moves_away_from_its_reference(job: dict[str, Any], acts: bool) -> None:
    for name in ("clip_ratio", "clip_ratio_low", "clip_ratio_high"):
        reason = TrainJob.model_construct(None, **job, **{name: 0.3}).why_without_effect(name)
        assert (reason is None) is acts, reason
        assert acts or "add `mini_batch_num: 4`" in str(reason)


def test_options_of_verl_may_stand_in_a_job_for_another_engine() -> None:
    assert build_job({"engine": "fake", "verl": {"trainer.nnodes": 1}}).verl


@pytest.mark.parametrize("name", GIVEN)
def test_a_record_of_a_whole_job_is_read_whatever_its_other_settings_need(name: str) -> None:
    unmet = TrainJob.model_validate(complete(name)).resolve().model_dump(mode="json")
    assert build_job(unmet).find_lacking(name) == {}
    assert build_job(TrainJob().resolve().model_dump(mode="json")).means(TrainJob())


@pytest.mark.parametrize("job", [{}, {"policy_loss": "gpg"}, {"algorithm": "gae"}, {"max_staleness": 1}])
def test_a_job_with_its_defaults_filled_in_is_a_job_and_means_the_same(job: dict[str, Any]) -> None:
    resolved = build_job(job).resolve()
    assert TypeAdapter(TrainJob).validate_python(resolved) == resolved
    assert build_job(resolved.model_dump(mode="json", exclude_defaults=True)).means(resolved)
    assert build_job(resolved.model_dump(mode="json", exclude_unset=True)).means(resolved)


def test_a_change_of_a_running_job_is_refused_if_nothing_reads_it() -> None:
    timeline = JobTimeline(TrainJob(total_steps=9, lr_scheduler_type="linear", min_lr_ratio=0.1))

    def change(settings: dict[str, Any]) -> None:
        check_effect(timeline.at(3), timeline.with_change(3, settings).at(3), settings)

    change({"lr_scheduler_type": "constant"})
    change({"lr_scheduler_type": "constant", "min_lr_ratio": 0.0})
    change({"dro_beta": None})
    for settings in ({"kl_loss_coef": 0.05}, {"dro_beta": 0.1}, {"rollout_is_threshold": 3.0}):
        with pytest.raises(BadRequest, match="has no effect while"):
            change(settings)
