"""A batch with settings of its own is trained as by a job that had them from the start."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from changed_batches import with_named_rewards
from late import Late
from tiny_models import MakeBatch, MakeModel

from swarm.job import TrainJob
from swarm.live_settings import LIVE, JobChange, JobTimeline, Reader
from swarm.types import TrainBatch

torch, learning = Late("torch"), Late("swarm.backends.local.learning.learner")
Trained = tuple[Any, Any]

JOB = TrainJob(lr=1e-3, use_kl_loss=True, total_steps=8)
OTHERS: dict[str, Any] = {
    "lr": 3e-3, "lr_warmup_steps": 3, "lr_scheduler_type": "cosine", "min_lr_ratio": 0.5, "weight_decay": 0.3,
    "betas": [0.5, 0.6], "grad_clip": 0.01, "ppo_epochs": 2, "mini_batch_num": 2, "ppo_max_token_len": 64,
    "norm_adv_by_std_in_grpo": False, "gamma": 0.5, "policy_loss": "gspo", "clip_ratio": 0.01,
    "clip_ratio_low": 0.01, "clip_ratio_high": 0.02, "clip_ratio_c": 1.1, "loss_agg_mode": "seq-mean-token-sum",
    "loss_scale_factor": 7, "entropy_coeff": 0.1, "rollout_is": "token", "rollout_is_threshold": 1.01,
    "kl_loss_coef": 0.5, "kl_loss_type": "k2", "dro_beta": 0.7, "loss_type": "reinforce",
    "rollout_is_batch_normalize": True, "rollout_rs": "token_k1", "rollout_rs_threshold": "0.95_1.05",
    "gdpo_reward_weights": [1.0, -2.0], "lam": 0.5, "critic_lr": 1e-2, "critic_warmup": 4, "cliprange_value": 0.01,
    "sft_lr": 0.1, "sft_coeff": 0.5,
}  # fmt: skip
"""Another value of every setting that is read when a batch is trained."""
DEMONSTRATIONS: dict[str, Any] = {"demonstrations": "sha256:0", "sft_coeff": 0.1}
GAE: dict[str, Any] = {"algorithm": "gae", "ppo_epochs": 2}
BYPASS: dict[str, Any] = {"policy_loss": "bypass_mode"}
PRESENT: dict[str, dict[str, Any]] = {
    "lam": GAE,
    "critic_lr": GAE,
    "critic_warmup": GAE,
    "cliprange_value": GAE,
    "gdpo_reward_weights": {"algorithm": "gdpo", "gdpo_reward_keys": ["right", "short"]},
    "dro_beta": {"policy_loss": "dro", "dro_beta": 0.1},
    "loss_type": BYPASS,
    "rollout_is_batch_normalize": {**BYPASS, "loss_type": "reinforce", "rollout_is": "token"},
    "rollout_rs": {**BYPASS, "rollout_rs": "token_k3", "rollout_rs_threshold": 1.05},
    "rollout_rs_threshold": {**BYPASS, "rollout_rs": "token_k1", "rollout_rs_threshold": 2.0},
    "sft_lr": {**DEMONSTRATIONS, "sft_steps": 4, "use_kl_loss": False},
    "sft_coeff": DEMONSTRATIONS,
}
"""What a job has from the start that reads such a setting, where the job of the others would not."""


@pytest.fixture(scope="module")
def after_two_steps(make_model: MakeModel, make_batch: MakeBatch) -> Callable[[TrainJob], Trained]:
    """A model with its learner, both of which the caller may change, after the first two steps of a job: most settings
    are changed in the same job, which is trained so far once."""

    @functools.cache
    def train(settings: str) -> Trained:
        module = make_model()
        learner = learning.Learner(module, TrainJob.model_validate_json(settings))
        for step in (1, 2):
            learner.step(batch_of(make_batch, step))
        return module, learner

    return lambda job: copy.deepcopy(train(job.model_dump_json()))


def batch_of(make_batch: MakeBatch, step: int) -> TrainBatch:
    batch = with_named_rewards(make_batch(step=step))
    return replace(batch, demonstrations=batch.episodes[:3])


def weights(module: torch.nn.Module) -> torch.Tensor:
    return torch.cat([weight.detach().flatten() for weight in module.parameters()])


def test_another_value_of_every_setting_that_training_reads_is_tried_here() -> None:
    at_training = {name for name, setting in LIVE.items() if setting.reader is Reader.STEP}
    of_checkpoints = {"save_freq", "keep_last", "keep_best", "keep_best_metric"}
    of_evaluations = {"eval_every", "eval_episodes", "eval_timeout_s"}
    assert OTHERS.keys() == at_training - {"total_steps", "guard"} - of_checkpoints - of_evaluations


@pytest.mark.parametrize("name", OTHERS)
def test_a_change_in_mid_run_trains_as_the_job_that_had_it_all_along(
    make_model: MakeModel, make_batch: MakeBatch, after_two_steps: Callable[[TrainJob], Trained], name: str
) -> None:
    """Adam's moments are those of the steps before, so both learners go on from the same ones."""
    job = TrainJob.model_validate(JOB.model_dump() | PRESENT.get(name, {}))
    timeline = JobTimeline(job, [JobChange(1, 3, {name: OTHERS[name]})])
    changed, learner = after_two_steps(job)
    throughout = make_model()
    other = learning.Learner(throughout, timeline.at(3))
    for batch in (batch_of(make_batch, step) for step in (1, 2)):
        other.step(replace(batch, settings=job.resolve().model_dump(mode="json")))
    third = batch_of(make_batch, 3)
    measured = learner.step(replace(third, settings=timeline.settings_of(3))).metrics
    expected = other.step(third).metrics
    assert torch.equal(weights(changed), weights(throughout))
    timing = {metric for metric in measured if metric.startswith("timing_s")}
    assert {key: measured[key] for key in measured.keys() - timing} == {
        key: expected[key] for key in expected.keys() - timing
    }


def test_the_settings_of_one_batch_do_not_hold_for_the_next(make_model: MakeModel, make_batch: MakeBatch) -> None:
    learner = learning.Learner(make_model(), JOB)
    batch = make_batch(step=1)
    rates = [
        learner.step(TrainBatch(batch.batch_id, step, batch.groups, settings)).metrics["actor/lr"]
        for step, settings in ((1, {"lr": 1e-5}), (2, {}))
    ]
    assert rates == [1e-5, 1e-3]
