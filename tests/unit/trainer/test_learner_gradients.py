"""The gradient of a step against a plain, obvious implementation, and under merging and microbatching."""

from __future__ import annotations

import statistics

import pytest
from loss_matrix import combinations, job_with_loss
from tiny_models import MakeBatch, MakeModel

from swarm.job import TrainJob
from swarm.types import TrainBatch


@pytest.fixture(scope="module", autouse=True)
def late_imports() -> None:
    global torch, group_advantages, learner_gradient, nudged, plain_gradient, plain_logprobs, ppo_term, relative_error
    import torch
    from plain_gradients import (
        group_advantages,
        learner_gradient,
        nudged,
        plain_gradient,
        plain_logprobs,
        ppo_term,
        relative_error,
    )


def plain_token_mean(module: torch.nn.Module, batch: TrainBatch, temperature: float = 1.0) -> torch.Tensor:
    """GRPO with token-mean aggregation: the mean of the clipped terms over all sampled tokens of the batch."""
    terms = []
    for group in batch.groups:
        advantages = group_advantages([episode.reward for episode in group.episodes], normalise=True)
        for episode, advantage in zip(group.episodes, advantages, strict=True):
            terms += [ppo_term(lp, old, advantage) for lp, _, old in plain_logprobs(module, episode, temperature)]
    return torch.stack(terms).mean()


def plain_dr_grpo(module: torch.nn.Module, batch: TrainBatch) -> torch.Tensor:
    """Dr.GRPO: no division by the deviation; sum over an episode's tokens over a constant; mean over episodes."""
    totals = []
    for group in batch.groups:
        advantages = group_advantages([episode.reward for episode in group.episodes], normalise=False)
        for episode, advantage in zip(group.episodes, advantages, strict=True):
            terms = [ppo_term(lp, old, advantage) for lp, _, old in plain_logprobs(module, episode, 1.0)]
            totals.append(torch.stack(terms).sum() / 40)
    return torch.stack(totals).mean()


def plain_rloo(module: torch.nn.Module, batch: TrainBatch) -> torch.Tensor:
    """Leave-one-out baseline; mean over each episode's tokens; mean over episodes."""
    totals = []
    for group in batch.groups:
        rewards = [episode.reward for episode in group.episodes]
        for number, episode in enumerate(group.episodes):
            others = rewards[:number] + rewards[number + 1 :]
            advantage = episode.reward - statistics.mean(others)
            terms = [ppo_term(lp, old, advantage) for lp, _, old in plain_logprobs(module, episode, 1.0)]
            totals.append(torch.stack(terms).mean())
    return torch.stack(totals).mean()


def plain_kl_and_entropy(module: torch.nn.Module, reference: torch.nn.Module, batch: TrainBatch) -> torch.Tensor:
    """What the KL (k3) and entropy terms add to the token-mean loss."""
    terms = []
    for episode in batch.episodes:
        with torch.no_grad():
            frozen = plain_logprobs(reference, episode, 1.0)
        for (logprob, entropy, _), (ref, _, _) in zip(plain_logprobs(module, episode, 1.0), frozen, strict=True):
            k3 = (ref - logprob).exp() - (ref - logprob) - 1
            terms.append(0.1 * k3 - 0.03 * entropy)
    return torch.stack(terms).mean()


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_grpo_gradient_equals_a_plain_implementation(
    make_model: MakeModel, make_batch: MakeBatch, temperature: float
) -> None:
    model, batch = make_model(), make_batch(temperature=temperature)
    job = TrainJob(algorithm="grpo", temperature=temperature)
    loss, gradient = learner_gradient(model, job, batch)
    plain_loss, plain = plain_gradient(model, lambda: plain_token_mean(model, batch, temperature))
    error = relative_error(gradient, plain)
    assert error < 1e-5, f"relative gradient error {error:.2e}"
    assert loss == pytest.approx(plain_loss, abs=1e-6)


def test_dr_grpo_gradient_equals_a_plain_implementation(make_model: MakeModel, make_batch: MakeBatch) -> None:
    model, batch = make_model(), make_batch()
    job = TrainJob(
        algorithm="grpo",
        norm_adv_by_std_in_grpo=False,
        loss_agg_mode="seq-mean-token-sum-norm",
        loss_scale_factor=40,
    )
    loss, gradient = learner_gradient(model, job, batch)
    plain_loss, plain = plain_gradient(model, lambda: plain_dr_grpo(model, batch))
    error = relative_error(gradient, plain)
    assert error < 1e-5, f"relative gradient error {error:.2e}"
    assert loss == pytest.approx(plain_loss, abs=1e-6)


@pytest.mark.parametrize("algorithm", ["rloo", "rloo_vectorized"])
def test_rloo_gradient_equals_a_plain_implementation(
    make_model: MakeModel, make_batch: MakeBatch, algorithm: str
) -> None:
    model, batch = make_model(), make_batch()
    job = TrainJob.model_validate({"algorithm": algorithm, "loss_agg_mode": "seq-mean-token-mean"})
    loss, gradient = learner_gradient(model, job, batch)
    plain_loss, plain = plain_gradient(model, lambda: plain_rloo(model, batch))
    error = relative_error(gradient, plain)
    assert error < 1e-5, f"relative gradient error {error:.2e}"
    assert loss == pytest.approx(plain_loss, abs=1e-6)


def test_kl_and_entropy_terms_equal_a_plain_implementation(make_model: MakeModel, make_batch: MakeBatch) -> None:
    model, batch = make_model(), make_batch()
    reference = nudged(model)
    job = TrainJob(use_kl_loss=True, kl_loss_coef=0.1, kl_loss_type="low_var_kl", entropy_coeff=0.03)
    _, gradient = learner_gradient(model, job, batch, reference)
    _, plain = plain_gradient(
        model, lambda: plain_token_mean(model, batch) + plain_kl_and_entropy(model, reference, batch)
    )
    error = relative_error(gradient, plain)
    assert error < 1e-5, f"relative gradient error {error:.2e}"


@pytest.mark.parametrize(("policy_loss", "aggregation"), combinations())
def test_merging_does_not_change_loss_or_gradient(
    make_model: MakeModel,
    make_batch: MakeBatch,
    policy_loss: str,
    aggregation: str,
) -> None:
    job = job_with_loss(policy_loss, loss_agg_mode=aggregation)
    model = make_model()
    merged, together = learner_gradient(model, job, make_batch(merged=True))
    unmerged, apart = learner_gradient(model, job, make_batch(merged=False))
    error = relative_error(together, apart)
    assert error < 1e-5, f"relative gradient error {error:.2e}"
    assert merged == pytest.approx(unmerged, rel=1e-5, abs=1e-6)


def test_merging_does_not_change_kl_and_entropy_terms(make_model: MakeModel, make_batch: MakeBatch) -> None:
    job = TrainJob(use_kl_loss=True, kl_loss_coef=0.1, entropy_coeff=0.03, loss_agg_mode="seq-mean-token-mean")
    model = make_model()
    reference = nudged(model)
    _, together = learner_gradient(model, job, make_batch(merged=True), reference)
    _, apart = learner_gradient(model, job, make_batch(merged=False), reference)
    error = relative_error(together, apart)
    assert error < 1e-5, f"relative gradient error {error:.2e}"


@pytest.mark.parametrize(("policy_loss", "aggregation"), combinations())
def test_microbatching_does_not_change_loss_or_gradient(
    make_model: MakeModel,
    make_batch: MakeBatch,
    policy_loss: str,
    aggregation: str,
) -> None:
    job = job_with_loss(policy_loss, loss_agg_mode=aggregation)
    model, batch = make_model(), make_batch()
    whole, at_once = learner_gradient(model, job, batch)
    parts, in_parts = learner_gradient(model, job.model_copy(update={"ppo_max_token_len": 64}), batch)
    error = relative_error(in_parts, at_once)
    largest = ((in_parts - at_once).abs().max() / at_once.norm()).item()
    assert largest < 1e-6, f"largest difference {largest:.2e} of the gradient norm"
    # Rounding of float32 sums in another order; it depends a little on the processor.
    assert error < 3e-6, f"relative gradient error {error:.2e}"
    assert parts == pytest.approx(whole, rel=1e-5, abs=1e-6)


def test_rows_of_zero_advantage_skip_the_forward_pass_but_count_in_the_mean(
    make_model: MakeModel, make_batch: MakeBatch
) -> None:
    model, batch = make_model(), make_batch(((1, 0), (1, 1, 1), (0, 0), (0.5, 1)))
    rows_run: list[int] = []
    watch = model.base_model.register_forward_hook(  # type: ignore[operator, union-attr]
        lambda _module, _args, kwargs, _output: rows_run.append(kwargs["input_ids"].shape[0]), with_kwargs=True
    )
    _, gradient = learner_gradient(model, TrainJob(), batch)
    watch.remove()
    informative = [len(e.samples) for g in (batch.groups[0], batch.groups[3]) for e in g.episodes]
    probes = 2
    assert sum(rows_run) == probes + sum(informative)
    _, plain = plain_gradient(model, lambda: plain_with_zeros(model, batch))
    error = relative_error(gradient, plain)
    assert error < 1e-5, f"relative gradient error {error:.2e}"


def plain_with_zeros(module: torch.nn.Module, batch: TrainBatch) -> torch.Tensor:
    """Token-mean GRPO in which constant groups stay in the mean with advantage 0."""
    terms = []
    for group in batch.groups:
        rewards = [episode.reward for episode in group.episodes]
        constant = len(set(rewards)) == 1
        advantages = [0.0] * len(rewards) if constant else group_advantages(rewards, normalise=True)
        for episode, advantage in zip(group.episodes, advantages, strict=True):
            terms += [ppo_term(lp, old, advantage) for lp, _, old in plain_logprobs(module, episode, 1.0)]
    return torch.stack(terms).mean()
