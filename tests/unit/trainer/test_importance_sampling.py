"""Truncated importance sampling against a plain implementation, on stale data, merged or not, in parts or whole."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import cycle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loss_matrix import EVERY_LOSS, combinations, job_with_loss
from tiny_models import MakeBatch, MakeModel, raises_in_pass

from swarm.job import TrainJob
from swarm.trainer.token_rows import Row, ScoredSample, build_rows
from swarm.types import FinishedEpisode, Group, TrainBatch


@pytest.fixture(scope="module", autouse=True)
def late_imports() -> None:
    global torch, flat_gradient, group_advantages, learner_gradient, nudged, plain_gradient, relative_error
    global RolloutCorrection, Learner, collate
    import torch
    from plain_gradients import (
        flat_gradient,
        group_advantages,
        learner_gradient,
        nudged,
        plain_gradient,
        relative_error,
    )

    from swarm.backends.local.learning.learner import Learner
    from swarm.backends.local.learning.losses import RolloutCorrection
    from swarm.backends.local.learning.microbatches import collate


LEVELS = ["token", "sequence"]
STALE = 0.4
"""Spread of the recorded logprobs around the exact ones: ratios of 0.3 to 3."""


def episode_logprobs(module: torch.nn.Module, episode: FinishedEpisode) -> torch.Tensor:
    """Of every trained token, one sample at a time."""
    found = []
    for sample in episode.samples:
        logprobs_TV = torch.log_softmax(module(input_ids=torch.tensor([sample.token_ids_T])).logits[0], -1)
        found += [
            logprobs_TV[position - 1, sample.token_ids_T[position]]
            for position, trained in enumerate(sample.loss_mask_T)
            if trained
        ]
    return torch.stack(found)


def recorded_logprobs(episode: FinishedEpisode) -> torch.Tensor:
    return torch.tensor(
        [
            logprob
            for sample in episode.samples
            for logprob, trained in zip(sample.logprobs_T, sample.loss_mask_T, strict=True)
            if trained
        ]
    )


def plain_weights(proximal: torch.Tensor, recorded: torch.Tensor, level: str, threshold: float) -> torch.Tensor:
    log_ratio = proximal - recorded
    if level == "sequence":
        log_ratio = log_ratio.sum().expand(len(log_ratio))
    return log_ratio.exp().clamp(max=threshold)


def clipped(new: torch.Tensor, old: torch.Tensor, advantage: float) -> torch.Tensor:
    ratio = (new - old).exp()
    return torch.maximum(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.2))


def dual_clipped(new: torch.Tensor, old: torch.Tensor, advantage: float) -> torch.Tensor:
    loss = clipped(new, old, advantage)
    return loss.clamp(max=-3.0 * advantage) if advantage < 0 else loss


def of_sequence_ratio(new: torch.Tensor, old: torch.Tensor, advantage: float) -> torch.Tensor:
    """GSPO: the value is the episode's, the gradient each token's own."""
    ratio = (new - old).mean().exp().detach() * (new - new.detach()).exp()
    return torch.maximum(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.2))


def with_frozen_ratio(new: torch.Tensor, old: torch.Tensor, advantage: float) -> torch.Tensor:
    return -(new - old).exp().clamp(0.8, 1.2).detach() * advantage * new


def within_divergence(
    divergence: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]:
    """DPPO: tokens that moved further than 0.2 in the direction of their advantage have no loss."""

    def loss(new: torch.Tensor, old: torch.Tensor, advantage: float) -> torch.Tensor:
        p, q = new.exp().detach(), old.exp()
        away = (p > q) if advantage > 0 else (p < q)
        kept = ~(away & (divergence(p, q) > 0.2))
        return -advantage * (new - old).exp().clamp(max=3.0).detach() * new * kept

    return loss


def total_variation(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return (p - q).abs()


def binary_kl(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return q * (q / p).log() + (1 - q) * ((1 - q) / (1 - p)).log()


def gated(new: torch.Tensor, old: torch.Tensor, advantage: float) -> torch.Tensor:
    tau = 1.0 if advantage > 0 else 1.05
    return -advantage * 4 / tau * torch.sigmoid(tau * ((new - old).exp() - 1))


PLAIN_LOSSES = {
    "vanilla": dual_clipped,
    "gspo": of_sequence_ratio,
    "cispo": with_frozen_ratio,
    "dppo_tv": within_divergence(total_variation),
    "dppo_kl": within_divergence(binary_kl),
    "sapo": gated,
    "gpg": lambda new, _old, advantage: -advantage * new,
    "dro": lambda new, old, advantage: -(advantage * new - 0.15 * (new - old).square()),
}
BY_EPISODE = {"gspo", "sapo"}
"""Averaged over the tokens of an episode first."""


def plain_loss(
    module: torch.nn.Module, start: torch.nn.Module, batch: TrainBatch, job: TrainJob, chosen: list[str]
) -> torch.Tensor:
    """Of the chosen episodes; `start` holds the weights of the start of the step."""
    terms = []
    for group in batch.groups:
        advantages = group_advantages([episode.reward for episode in group.episodes], normalise=True)
        for episode, advantage in zip(group.episodes, advantages, strict=True):
            if episode.episode_id not in chosen:
                continue
            with torch.no_grad():
                old = episode_logprobs(start, episode)
            weights = plain_weights(old, recorded_logprobs(episode), str(job.rollout_is), job.rollout_is_threshold)
            new = episode_logprobs(module, episode)
            if job.policy_loss == "geo_mean":
                ratio = geometric_ratio(new, old, advantage)
                terms.append((-advantage * ratio * weights.log().mean().exp())[None])
                continue
            loss = PLAIN_LOSSES[job.policy_loss](new, old, advantage) * weights
            terms.append(loss.mean()[None] if job.policy_loss in BY_EPISODE else loss)
    return torch.cat(terms).mean()


def geometric_ratio(new: torch.Tensor, old: torch.Tensor, advantage: float) -> torch.Tensor:
    """The pessimistic side of the clip at each token, averaged in log space."""
    gap = new - old
    sign = math.copysign(1.0, advantage) if advantage else 0.0
    return (sign * torch.minimum(sign * gap, sign * gap.clamp(-0.2, 0.2))).mean().exp()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("policy_loss", [*PLAIN_LOSSES, "geo_mean"])
def test_a_later_minibatch_of_stale_data_equals_a_plain_implementation(
    make_model: MakeModel, make_batch: MakeBatch, policy_loss: str, level: str
) -> None:
    batch = make_batch(((1, 0, 0.5), (0, 1), (0.25, 0, 0, 1)), noise=STALE)
    job = job_with_loss(policy_loss, rollout_is=level)
    start = make_model()
    moved = nudged(start)
    chosen = [0, 1, 4, 5, 7, 8]
    names = [batch.episodes[number].episode_id for number in chosen]
    loss, gradient = learner_gradient(make_model(), job, batch, moved=moved, chosen=chosen)
    plain, expected = plain_gradient(moved, lambda: plain_loss(moved, start, batch, job, names))
    error = relative_error(gradient, expected)
    assert error < 1e-5, f"relative gradient error {error:.2e}"
    assert loss == pytest.approx(plain, rel=1e-5, abs=1e-6)


def tokens_of_batch(
    module: torch.nn.Module, start: torch.nn.Module, batch: TrainBatch, level: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """New and old logprobs, advantages and weights of all trained tokens."""
    columns = []
    for group in batch.groups:
        advantages = group_advantages([episode.reward for episode in group.episodes], normalise=True)
        for episode, advantage in zip(group.episodes, advantages, strict=True):
            new = episode_logprobs(module, episode)
            with torch.no_grad():
                old = episode_logprobs(start, episode)
            weights = plain_weights(old, recorded_logprobs(episode), level, 2.0)
            columns.append((new, old, torch.full_like(old, advantage), weights))
    new, old, advantages, weights = (torch.cat(column) for column in zip(*columns, strict=True))
    return new, old, advantages, weights


@pytest.mark.parametrize("level", LEVELS)
def test_kl_cov_of_stale_data_equals_a_plain_implementation(
    make_model: MakeModel, make_batch: MakeBatch, level: str
) -> None:
    batch = make_batch(((1, 0, 0.5), (0, 1)), noise=STALE)
    start = make_model()
    moved = nudged(start)

    def plain() -> torch.Tensor:
        new, old, advantages, weights = tokens_of_batch(moved, start, batch, level)
        covariances = (advantages - advantages.mean()) * (new - new.mean()).detach()
        penalty = torch.zeros_like(old)
        penalty[covariances.argmax()] = 0.1
        return ((-advantages * (new - old).exp() + penalty * (new - old).abs()) * weights).mean()

    job = TrainJob.model_validate({"policy_loss": "kl_cov", "rollout_is": level})
    loss, gradient = learner_gradient(make_model(), job, batch, moved=moved)
    expected_loss, expected = plain_gradient(moved, plain)
    error = relative_error(gradient, expected)
    assert error < 1e-5, f"relative gradient error {error:.2e}"
    assert loss == pytest.approx(expected_loss, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("level", LEVELS)
def test_clip_cov_of_stale_data_equals_a_plain_implementation_without_one_of_the_candidates(
    make_model: MakeModel, make_batch: MakeBatch, level: str
) -> None:
    batch = make_batch(((1, 0, 0.5), (0, 1)), noise=STALE)
    start = make_model()
    moved = nudged(start)
    job = TrainJob.model_validate({"policy_loss": "clip_cov", "rollout_is": level})
    _, gradient = learner_gradient(make_model(), job, batch, moved=moved)

    new, old, advantages, weights = tokens_of_batch(moved, start, batch, level)
    ratio = (new - old).exp()
    losses = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(0.8, 1.2)) * weights / len(new)
    covariances = (advantages - advantages.mean()) * (new - new.mean()).detach()
    unclipped = -advantages * ratio >= -advantages * ratio.clamp(0.8, 1.2)
    candidates = ((covariances > 1) & (covariances < 5) & unclipped).nonzero().flatten().tolist()
    assert len(candidates) > 1
    parameters = list(moved.parameters())

    def flat(loss: torch.Tensor) -> torch.Tensor:
        gradients = torch.autograd.grad(loss, parameters, retain_graph=True)
        return torch.cat([each.flatten().double() for each in gradients])

    whole = flat(losses.sum())
    error = min(relative_error(gradient, whole - flat(losses[candidate])) for candidate in candidates)
    assert error < 1e-5, f"relative gradient error {error:.2e}"


@pytest.mark.parametrize("threshold", [0.7, 2.0, 100.0])
@pytest.mark.parametrize("level", LEVELS)
def test_a_step_of_one_minibatch_equals_a_plain_implementation(
    make_model: MakeModel, make_batch: MakeBatch, level: str, threshold: float
) -> None:
    batch, model = make_batch(noise=STALE, rewards=((1, 0, 0.5), (0, 1))), make_model()
    job = TrainJob.model_validate({"rollout_is": level, "rollout_is_threshold": threshold})
    loss, gradient = learner_gradient(model, job, batch)
    names = [episode.episode_id for episode in batch.episodes]
    plain, expected = plain_gradient(model, lambda: plain_loss(model, model, batch, job, names))
    error = relative_error(gradient, expected)
    assert error < 1e-5, f"relative gradient error {error:.2e}"
    assert loss == pytest.approx(plain, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("level", LEVELS)
# kl_cov pays for |log ratio|, whose gradient at 0 is decided by rounding; bypass_mode has no proximal policy.
@pytest.mark.parametrize("policy_loss", [name for name in EVERY_LOSS if name not in {"kl_cov", "bypass_mode"}])
def test_on_policy_data_has_weights_of_one_and_the_gradient_without_correction(
    make_model: MakeModel, make_batch: MakeBatch, policy_loss: str, level: str
) -> None:
    batch, model = make_batch(noise=0.0), make_model()
    on = job_with_loss(policy_loss, rollout_is=level)
    off = on.model_copy(update={"rollout_is": "off"})
    _, corrected = learner_gradient(model, on, batch)
    _, gradient = learner_gradient(model, off, batch)
    error = relative_error(corrected, gradient)
    assert error < 1e-5, f"relative gradient error {error:.2e}"
    metrics = Learner(make_model(), on).step(batch).metrics
    assert metrics["rollout_corr/rollout_is_max"] == pytest.approx(1, abs=1e-5)
    assert metrics["rollout_corr/rollout_is_min"] == pytest.approx(1, abs=1e-5)
    assert metrics["rollout_corr/kl"] == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize(
    ("policy_loss", "aggregation", "level"),
    [
        pytest.param(*pair.values, level, marks=pair.marks)
        for pair, level in zip(combinations("bypass_mode"), cycle(LEVELS), strict=False)
    ],
)
def test_neither_merging_nor_microbatches_change_the_corrected_gradient(
    make_model: MakeModel, make_batch: MakeBatch, policy_loss: str, aggregation: str, level: str
) -> None:
    job = job_with_loss(policy_loss, loss_agg_mode=aggregation, rollout_is=level)
    model = make_model()
    whole, gradient = learner_gradient(model, job, make_batch(noise=STALE))
    variants = {
        "unmerged": (job, make_batch(noise=STALE, merged=False)),
        "microbatches": (job.model_copy(update={"ppo_max_token_len": 64}), make_batch(noise=STALE)),
    }
    for name, (variant, batch) in variants.items():
        loss, other = learner_gradient(model, variant, batch)
        error = relative_error(other, gradient)
        assert error < 1e-5, f"{name}: relative gradient error {error:.2e}"
        # A sum of hundreds of terms that cancel out is rounded as often; a mean is divided by their number.
        addends = sum(each.trained_tokens for each in batch.episodes) if aggregation == "token-sum" else 1
        assert loss == pytest.approx(whole, rel=1e-5, abs=1e-6 * addends), name


def test_minibatches_are_weighed_by_the_weights_of_the_start_of_the_step(
    make_model: MakeModel, make_batch: MakeBatch
) -> None:
    batch = make_batch(noise=STALE)
    reports = [
        Learner(make_model(), TrainJob(rollout_is="sequence", lr=0.05, mini_batch_num=parts, ppo_epochs=epochs)).step(
            batch
        )
        for parts, epochs in ((1, 1), (3, 2))
    ]
    once, often = (
        {name: value for name, value in report.metrics.items() if name.startswith("rollout_corr/")}
        for report in reports
    )
    assert once
    assert often == pytest.approx(once, rel=1e-4, abs=1e-5)


def test_weights_are_truncated_at_the_threshold(make_model: MakeModel, make_batch: MakeBatch) -> None:
    metrics = (
        Learner(make_model(), TrainJob(rollout_is="token", rollout_is_threshold=1.3))
        .step(make_batch(noise=STALE))
        .metrics
    )
    assert metrics["rollout_corr/rollout_is_max"] == pytest.approx(1.3)
    assert metrics["rollout_corr/rollout_is_ratio_fraction_high"] > 0.1


def test_only_jobs_that_allow_stale_tokens_correct_by_default(make_model: MakeModel, make_batch: MakeBatch) -> None:
    for job, expected in ((TrainJob(), False), (TrainJob(max_staleness=1), True)):
        metrics = Learner(make_model(), job).step(make_batch(noise=STALE)).metrics
        assert any(name.startswith("rollout_corr/") for name in metrics) is expected


@pytest.mark.parametrize("level", LEVELS)
def test_a_logprob_that_is_not_a_number_costs_its_minibatch_only(
    make_model: MakeModel, make_batch: MakeBatch, level: str
) -> None:
    batch = make_batch(((1, 0, 0, 1),))
    first, *others = batch.episodes
    sample = first.samples[0]
    spoiled = replace(sample, logprobs_T=tuple(math.nan if mask else 0.0 for mask in sample.loss_mask_T))
    poisoned = Group(batch.groups[0].task_id, (replace(first, samples=(spoiled, *first.samples[1:])), *others))
    model = make_model()
    job = TrainJob.model_validate({"rollout_is": level, "mini_batch_num": 4})
    metrics = Learner(model, job).step(replace(batch, groups=(poisoned,))).metrics
    assert metrics["actor/updates_not_finite"] == 1
    assert metrics["actor/updates"] == 3
    assert all(math.isfinite(value) for value in metrics.values())
    assert all(torch.isfinite(weight).all() for weight in model.parameters())


def test_a_batch_without_signal_is_not_scored(make_model: MakeModel, make_batch: MakeBatch) -> None:
    job = TrainJob(rollout_is="token", mini_batch_num=2)
    model = make_model()
    learner = Learner(model, job)
    with raises_in_pass(model, 0, AssertionError("a pass")):
        report = learner.step(make_batch(((1, 1), (0, 0))))
    assert not any(name.startswith("rollout_corr/") for name in report.metrics)


def test_a_step_that_is_corrected_is_repeated_bit_for_bit(make_model: MakeModel, make_batch: MakeBatch) -> None:
    job = TrainJob(rollout_is="token", mini_batch_num=3, ppo_epochs=2, lr=1e-2)
    models = [make_model() for _ in range(2)]
    for model in models:
        Learner(model, job).step(make_batch(noise=STALE))
    assert all(torch.equal(*pair) for pair in zip(*(model.parameters() for model in models), strict=True))
    assert not flat_gradient(models[0]).any()


LOGPROBS = st.floats(-60, 0, width=32)


@settings(deadline=None)
@given(
    tokens=st.lists(st.lists(st.tuples(LOGPROBS, LOGPROBS), min_size=1, max_size=5), min_size=1, max_size=4),
    level=st.sampled_from(LEVELS),
    threshold=st.sampled_from([0.5, 2.0, 10.0]),
)
def test_weights_of_ragged_rows_are_the_truncated_ratios(
    tokens: list[list[tuple[float, float]]], level: str, threshold: float
) -> None:
    rows = [make_row(number, [old for _, old in row]) for number, row in enumerate(tokens)]
    correction = RolloutCorrection(
        rows, TrainJob.model_validate({"rollout_is": level, "rollout_is_threshold": threshold})
    )
    order = list(reversed(range(len(rows))))
    micro = collate(rows, order, torch.zeros(len(rows), 9), torch.device("cpu"))
    proximal = torch.zeros_like(micro.rollout_logprobs_RL)
    for line, number in enumerate(order):
        proximal[line, : len(tokens[number])] = torch.tensor([new for new, _ in tokens[number]])
    correction.record(order, proximal)
    got = correction.of(order, micro)
    assert torch.equal(got.proximal_logprobs_RL, proximal)
    for line, number in enumerate(order):
        gaps = [max(-20.0, min(20.0, new - old)) for new, old in tokens[number]]
        if level == "sequence":
            gaps = [max(-20.0, min(20.0, sum(new - old for new, old in tokens[number])))] * len(gaps)
        expected = [min(math.exp(gap), threshold) for gap in gaps]
        assert got.weights_RL[line, : len(expected)].tolist() == pytest.approx(expected, rel=1e-4)
        assert not got.weights_RL[line, len(expected) :].any()


def make_row(number: int, logprobs: list[float]) -> Row:
    count = len(logprobs)
    ids = np.arange(count + 1)
    return Row(
        episode_id=f"e{number}",
        group=number,
        reward=0.0,
        turn_rewards=None,
        samples=(ScoredSample(ids, ids[1:], ids[:-1], np.ones(count, dtype=np.float32)),),
        rollout_logprobs_L=np.asarray(logprobs, dtype=np.float32),
        turn_indices_L=np.zeros(count, dtype=np.int64),
        weight_versions_L=np.zeros(count, dtype=np.int64),
    )


def test_rows_of_a_batch_keep_what_was_recorded_first(make_batch: MakeBatch) -> None:
    rows = build_rows(make_batch())
    correction = RolloutCorrection(rows, TrainJob(rollout_is="token"))
    micro = collate(rows, [2, 0], torch.zeros(len(rows), 99), torch.device("cpu"))
    first, later = torch.full_like(micro.rollout_logprobs_RL, -1.0), torch.full_like(micro.rollout_logprobs_RL, -2.0)
    correction.record([2, 0], first)
    correction.record([2, 0], later)
    assert torch.equal(correction.of([2, 0], micro).proximal_logprobs_RL, first)
