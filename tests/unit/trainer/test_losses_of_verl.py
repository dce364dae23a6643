"""Every policy loss is verl's own function, over rows that are episodes; and what bypass_mode leaves out."""

from __future__ import annotations

from typing import Any

import pytest
from loss_matrix import EVERY_LOSS, job_with_loss
from tiny_models import MakeBatch, MakeModel

from swarm.job import TrainJob
from swarm.job.checks import REJECTIONS
from swarm.trainer.token_rows import build_rows
from swarm.types import TrainBatch


@pytest.fixture(scope="module", autouse=True)
def late_imports() -> None:
    global torch, flat_gradient, group_advantages, learner_gradient, nudged, plain_gradient, plain_logprobs, ppo_term
    global relative_error, RolloutCorrectionConfig, get_policy_loss_fn, SUPPORTED_ROLLOUT_RS_OPTIONS, ActorConfig
    global PolicyLossConfig, Learner, compute_advantages
    import torch
    from plain_gradients import (
        flat_gradient,
        group_advantages,
        learner_gradient,
        nudged,
        plain_gradient,
        plain_logprobs,
        ppo_term,
        relative_error,
    )
    from verl.trainer.config.algorithm import RolloutCorrectionConfig
    from verl.trainer.ppo.core_algos import get_policy_loss_fn
    from verl.trainer.ppo.rollout_corr_helper import SUPPORTED_ROLLOUT_RS_OPTIONS
    from verl.workers.config import ActorConfig, PolicyLossConfig

    from swarm.backends.local.learning.learner import Learner
    from swarm.trainer.advantages import compute_advantages


BYPASS: dict[str, Any] = {"policy_loss": "bypass_mode"}
REINFORCE: dict[str, Any] = {**BYPASS, "loss_type": "reinforce"}
VARIANTS: list[dict[str, Any]] = [
    BYPASS,
    {**BYPASS, "rollout_rs": "token_k1", "rollout_rs_threshold": "0.8_1.3"},
    {**BYPASS, "rollout_rs": "seq_mean_k1,token_k2", "rollout_rs_threshold": "1.1,0.05"},
    REINFORCE,
    {**REINFORCE, "rollout_is": "token", "rollout_is_threshold": 1.1},
    {**REINFORCE, "rollout_is": "sequence", "rollout_rs": "seq_max_k2", "rollout_rs_threshold": 0.1},
    {**REINFORCE, "rollout_is": "token", "rollout_is_batch_normalize": True, "ppo_max_token_len": 64},
    *({"policy_loss": name} for name in EVERY_LOSS if name not in {"bypass_mode", "dro", "clip_cov"}),
    {"policy_loss": "dro", "dro_beta": 0.5},
]
"""All losses but clip_cov, which draws among the tokens in the order of a microbatch, where rows are sorted."""


def verl_gradient(module: torch.nn.Module, job: TrainJob, batch: TrainBatch) -> tuple[float, torch.Tensor]:
    """verl's function over one matrix of whole episodes, one sample and one token scored at a time."""
    job = job.resolve()
    rows = build_rows(batch)
    advantages_EL = compute_advantages(rows, job)
    scored = [plain_logprobs(module, episode, 1.0) for episode in batch.episodes]
    new_EL, old_EL = torch.zeros_like(advantages_EL), torch.zeros_like(advantages_EL)
    mask_EL = torch.zeros_like(advantages_EL, dtype=torch.bool)
    for line, tokens in enumerate(scored):
        mask_EL[line, : len(tokens)] = True
        new_EL[line, : len(tokens)] = torch.stack([logprob for logprob, _, _ in tokens])
        old_EL[line, : len(tokens)] = torch.tensor([old for _, _, old in tokens])
    config = ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        use_dynamic_bsz=True,
        clip_ratio_c=job.clip_ratio_c,
        loss_scale_factor=job.max_response_length,
        policy_loss=PolicyLossConfig(
            loss_mode=job.policy_loss,
            dro_beta=job.dro_beta,
            rollout_correction=RolloutCorrectionConfig(
                rollout_is=None if job.rollout_is == "off" else job.rollout_is,
                rollout_is_threshold=job.rollout_is_threshold,
                rollout_is_batch_normalize=job.rollout_is_batch_normalize,
                rollout_rs=job.rollout_rs,
                rollout_rs_threshold=job.rollout_rs_threshold,
                loss_type=job.loss_type,
            ),
        ),
    )
    config.global_batch_info.update(batch_num_tokens=mask_EL.sum(), global_batch_size=len(rows))
    module.zero_grad()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        loss, _ = get_policy_loss_fn(job.policy_loss)(
            old_log_prob=old_EL,
            log_prob=new_EL,
            advantages=advantages_EL,
            response_mask=mask_EL,
            loss_agg_mode=str(job.loss_agg_mode),
            config=config,
        )
    loss.backward()
    return loss.item(), flat_gradient(module)


def name_of(settings: dict[str, Any]) -> str:
    return "-".join(str(value) for value in settings.values())


@pytest.mark.parametrize("settings", VARIANTS, ids=name_of)
def test_loss_and_gradient_are_those_of_verls_function(
    make_model: MakeModel, make_batch: MakeBatch, settings: dict[str, Any]
) -> None:
    batch, model = make_batch(((1, 0, 0.5), (0, 1), (0.25, 0, 0, 1))), nudged(make_model())
    job = TrainJob.model_validate(settings)
    loss, gradient = learner_gradient(model, job, batch)
    expected, plain = verl_gradient(model, job, batch)
    assert loss == pytest.approx(expected, rel=1e-5, abs=1e-6)
    error = relative_error(gradient, plain)
    assert error < 1e-5, f"relative gradient error {error:.2e}"


def test_criteria_of_rejection_are_those_of_verl() -> None:
    assert set(REJECTIONS) == SUPPORTED_ROLLOUT_RS_OPTIONS


def test_rejected_tokens_have_no_gradient_and_count_in_the_mean(make_model: MakeModel, make_batch: MakeBatch) -> None:
    batch, model = make_batch(((1, 0, 0.25), (0, 1))), make_model()
    job = TrainJob.model_validate({**BYPASS, "rollout_rs": "token_k1", "rollout_rs_threshold": "0.9_1.2"})
    kept = []

    def plain() -> torch.Tensor:
        terms = []
        for group in batch.groups:
            advantages = group_advantages([episode.reward for episode in group.episodes], normalise=True)
            for episode, advantage in zip(group.episodes, advantages, strict=True):
                for new, _, old in plain_logprobs(model, episode, 1.0):
                    # verl's k1 is that of the sampler's probability over the policy's.
                    is_kept = 0.9 <= (old - new).exp().item() <= 1.2
                    kept.append(is_kept)
                    terms.append(ppo_term(new, old, advantage) * is_kept)
        return torch.stack(terms).mean()

    loss, gradient = learner_gradient(model, job, batch)
    expected, other = plain_gradient(model, plain)
    assert 0 < sum(kept) < len(kept)
    assert loss == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert relative_error(gradient, other) < 1e-5
    metrics = Learner(make_model(), job).step(batch).metrics
    assert metrics["rollout_corr/rollout_rs_masked_fraction"] == pytest.approx(1 - sum(kept) / len(kept), abs=1e-5)


def test_without_rejection_the_clipped_loss_of_bypass_mode_is_vanilla(
    make_model: MakeModel, make_batch: MakeBatch
) -> None:
    job = TrainJob.model_validate({**BYPASS, "max_staleness": 2})
    assert job.resolve().rollout_is == "off"
    _, gradient = learner_gradient(make_model(), job, make_batch())
    _, other = learner_gradient(make_model(), TrainJob(), make_batch())
    assert relative_error(gradient, other) < 1e-6


def test_a_batch_that_is_rejected_whole_trains_nothing_and_is_reported(
    make_model: MakeModel, make_batch: MakeBatch
) -> None:
    job = TrainJob.model_validate({**BYPASS, "rollout_rs": "seq_max_k2", "rollout_rs_threshold": 1e-9})
    report = Learner(make_model(), job).step(make_batch(((1, 0), (0, 1))))
    assert report.metrics["rollout_corr/rollout_rs_seq_masked_fraction"] == 1
    assert report.metrics["actor/grad_norm"] == 0


def test_dro_alone_moves_no_weights_where_nothing_is_to_be_learned(
    make_model: MakeModel, make_batch: MakeBatch
) -> None:
    job = job_with_loss("dro", mini_batch_num=2)
    model = nudged(make_model())
    before = [weight.clone() for weight in model.parameters()]
    metrics = Learner(model, job).step(make_batch(((1, 1), (0, 0)))).metrics
    assert (metrics["actor/updates"], metrics["actor/updates_without_signal"]) == (0, 2)
    assert all(torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True))
