"""The gradient of a minibatch against plain formulas and verl's functions, however it is merged, cut and weighed."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import cycle
from typing import Any

import numpy as np
import pytest
from changed_batches import with_episodes
from late import Late
from loss_matrix import combinations, job_with_loss
from tiny_models import MakeBatch, MakeModel

from swarm.job import TrainJob
from swarm.types import FinishedEpisode, TrainBatch

torch, plain = Late("torch"), Late("plain_gradients")

LEVELS = ["token", "sequence"]
STALE = 0.4
"""Spread of the recorded logprobs around the exact ones: ratios of 0.3 to 3."""
GROUPS = ((1, 0, 0.5), (0, 1), (0.25, 0, 0, 1))
BYPASS: dict[str, Any] = {"policy_loss": "bypass_mode"}
REINFORCE: dict[str, Any] = {**BYPASS, "loss_type": "reinforce"}
K1: dict[str, Any] = {"rollout_rs": "token_k1", "rollout_rs_threshold": "0.9_1.2"}


def expect_gradient(found: tuple[float, torch.Tensor], expected: tuple[float, torch.Tensor], addends: int = 1) -> None:
    """A sum of `addends` terms that cancel out is rounded as often; a mean is divided by their number."""
    error = plain.relative_error(found[1], expected[1])
    assert error < 1e-5, f"relative gradient error {error:.2e}"
    assert found[0] == pytest.approx(expected[0], rel=1e-5, abs=1e-6 * addends)


def standardised(rewards: list[float]) -> list[float]:
    return plain.group_advantages(rewards)


def centred(rewards: list[float]) -> list[float]:
    return plain.group_advantages(rewards, normalise=False)


def left_one_out(rewards: list[float]) -> list[float]:
    return [reward - statistics.mean(rewards[:number] + rewards[number + 1 :]) for number, reward in enumerate(rewards)]


def mean_of_tokens(terms: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat(list(terms)).mean()


def mean_of_sums(terms: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.stack([each.sum() / 40 for each in terms]).mean()


def mean_of_means(terms: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.stack([each.mean() for each in terms]).mean()


DR_GRPO: dict[str, Any] = {
    "norm_adv_by_std_in_grpo": False,
    "loss_agg_mode": "seq-mean-token-sum-norm",
    "loss_scale_factor": 40,
}
KL_AND_ENTROPY: dict[str, Any] = {"use_kl_loss": True, "kl_loss_coef": 0.1, "entropy_coeff": 0.03}
OF_EPISODES: dict[str, Any] = {"loss_agg_mode": "seq-mean-token-mean"}


@pytest.mark.parametrize(
    ("settings", "advantages_of", "aggregate", "temperature"),
    [
        ({}, standardised, mean_of_tokens, 1.0),
        ({}, standardised, mean_of_tokens, 0.7),
        (KL_AND_ENTROPY, standardised, mean_of_tokens, 1.0),
        (DR_GRPO, centred, mean_of_sums, 1.0),
        ({"algorithm": "rloo", **OF_EPISODES}, left_one_out, mean_of_means, 1.0),
        ({"algorithm": "rloo_vectorized", **OF_EPISODES}, left_one_out, mean_of_means, 1.0),
    ],
    ids=["grpo", "grpo-0.7", "kl-and-entropy", "dr-grpo", "rloo", "rloo-vectorized"],
)
def test_gradient_is_that_of_the_plain_formula(
    make_model: MakeModel,
    make_batch: MakeBatch,
    settings: dict[str, Any],
    advantages_of: Any,
    aggregate: Any,
    temperature: float,
) -> None:
    """One group has equal rewards, which count in every mean."""
    model, batch = make_model(), make_batch(temperature=temperature)
    job = TrainJob.model_validate({**settings, "temperature": temperature})
    reference = plain.nudged(model) if job.use_kl_loss else None
    loss, gradient = plain.learner_gradient(model, job, batch, reference)
    expected, formula = plain.plain_gradient(
        model, lambda: aggregate(plain.plain_terms(model, batch, temperature, advantages_of, reference))
    )
    # The reported loss is that of the policy alone.
    expect_gradient((expected if job.use_kl_loss else loss, gradient), (expected, formula))


def with_turn_rewards(batch: TrainBatch) -> TrainBatch:
    """The same batch with turn rewards for every second episode."""
    random = np.random.default_rng(0)

    def rewarded(number: int, episode: FinishedEpisode) -> FinishedEpisode:
        turns = 1 + max(max(sample.turn_indices_T) for sample in episode.samples)
        rewards = tuple(random.normal(size=turns).tolist())
        return episode if number % 2 else replace(episode, turn_rewards=rewards)

    return with_episodes(batch, rewarded)


def expect_verls_gradient(make_model: MakeModel, job: TrainJob, make: Callable[..., TrainBatch]) -> None:
    """Of a batch merged and not, in one microbatch and in several."""
    start, moved = make_model(), plain.nudged(make_model())
    is_corrected = job.resolve().has_proximal_policy
    # A later minibatch, after the weights have moved away from those at the start of the step.
    chosen = [0, 1, 4, 5, 7, 8] if is_corrected else None
    expected = plain.verl_gradient(moved, job, make(), start=start, chosen=chosen)

    def found(variant: TrainJob, batch: TrainBatch) -> tuple[float, torch.Tensor]:
        if is_corrected:
            return plain.learner_gradient(make_model(), variant, batch, moved=moved, chosen=chosen)
        return plain.learner_gradient(moved, variant, batch)

    whole, parts = found(job, make()), found(job.model_copy(update={"ppo_max_token_len": 64}), make())
    addends = sum(each.trained_tokens for each in make().episodes) if job.loss_agg_mode == "token-sum" else 1
    for each in (whole, parts, found(job, make(merged=False))):
        expect_gradient(each, expected, addends)
    # Rounding of float32 sums in another order; it depends a little on the processor.
    assert plain.relative_error(parts[1], whole[1]) < 3e-6
    assert ((parts[1] - whole[1]).abs().max() / whole[1].norm()).item() < 1e-6


@pytest.mark.parametrize(
    "settings",
    [
        BYPASS,
        {**BYPASS, **K1},
        {**BYPASS, "rollout_rs": "seq_mean_k1,token_k2", "rollout_rs_threshold": "1.1,0.05"},
        REINFORCE,
        {**REINFORCE, "rollout_is": "token", "rollout_is_threshold": 1.1},
        {**REINFORCE, "rollout_is": "sequence", "rollout_rs": "seq_max_k2", "rollout_rs_threshold": 0.1},
        {**REINFORCE, "rollout_is": "token", "rollout_is_batch_normalize": True},
        {"rollout_is": "token", "rollout_is_threshold": 0.7},
        {"rollout_is": "sequence", "rollout_is_threshold": 100.0},
    ],
    ids=lambda settings: "-".join(str(value) for value in settings.values()),
)
def test_settings_of_rejection_and_truncation_are_those_of_verl(
    make_model: MakeModel, make_batch: MakeBatch, settings: dict[str, Any]
) -> None:
    job = TrainJob.model_validate(settings)
    expect_verls_gradient(make_model, job, lambda **more: make_batch(GROUPS, **more))
    first = plain.learner_gradient(make_model(), job, make_batch(GROUPS, noise=STALE))
    expect_gradient(first, plain.verl_gradient(make_model(), job, make_batch(GROUPS, noise=STALE)))


@pytest.mark.parametrize(("policy_loss", "aggregation"), combinations())
def test_every_loss_and_aggregation_has_the_gradient_of_verls_function(
    make_model: MakeModel, make_batch: MakeBatch, policy_loss: str, aggregation: str
) -> None:
    job = job_with_loss(policy_loss, loss_agg_mode=aggregation)
    expect_verls_gradient(make_model, job, lambda **more: make_batch(GROUPS, **more))


@pytest.mark.parametrize(
    ("policy_loss", "aggregation", "level"),
    [
        pytest.param(*pair.values, level, marks=pair.marks)
        for pair, level in zip(combinations("bypass_mode"), cycle(LEVELS), strict=False)
    ],
)
def test_a_later_minibatch_of_stale_data_has_the_weighed_gradient_of_verls_function(
    make_model: MakeModel, make_batch: MakeBatch, policy_loss: str, aggregation: str, level: str
) -> None:
    job = job_with_loss(policy_loss, loss_agg_mode=aggregation, rollout_is=level)
    expect_verls_gradient(make_model, job, lambda **more: make_batch(GROUPS, noise=STALE, **more))


@pytest.mark.parametrize("policy_loss", ["vanilla", "gspo", "geo_mean"])
def test_turn_rewards_reach_the_tokens_of_their_turns(
    make_model: MakeModel, make_batch: MakeBatch, policy_loss: str
) -> None:
    job = job_with_loss(policy_loss)
    expect_verls_gradient(make_model, job, lambda **more: with_turn_rewards(make_batch(GROUPS, **more)))
