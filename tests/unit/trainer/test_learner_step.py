"""A whole step: it learns, reports, repeats itself, and changes everything or nothing."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from tiny_models import MakeBatch, MakeModel, raises_in_pass

from swarm.job import TrainJob
from swarm.types import Group, TrainBatch


@pytest.fixture(scope="module", autouse=True)
def late_imports() -> None:
    global torch, Learner, draw_minibatches
    import torch

    from swarm.backends.local.learning.learner import Learner, draw_minibatches


def weights(module: torch.nn.Module) -> torch.Tensor:
    return torch.cat([weight.detach().flatten().clone() for weight in module.parameters()])


def reward_weighted_logprob(module: torch.nn.Module, batch: TrainBatch) -> float:
    """What policy gradients raise: summed logprobs times the reward above 0.5."""
    total = 0.0
    for episode in batch.episodes:
        for sample in episode.samples:
            logprobs = torch.log_softmax(module(input_ids=torch.tensor([sample.token_ids_T])).logits[0], -1)
            for position, trained in enumerate(sample.loss_mask_T):
                if trained:
                    logprob = logprobs[position - 1, sample.token_ids_T[position]].item()
                    total += (episode.reward - 0.5) * logprob
    return total


def test_steps_raise_the_probability_of_what_was_rewarded(make_model: MakeModel, make_batch: MakeBatch) -> None:
    model, batch = make_model(), make_batch(((1, 0), (0, 1)), noise=0.0)
    before = reward_weighted_logprob(model, batch)
    report = Learner(model, TrainJob(lr=1e-3)).step(batch)
    assert reward_weighted_logprob(model, batch) > before
    assert report.metrics["actor/updates"] == 1
    assert report.metrics["actor/grad_norm"] > 0


def test_report_gives_scores_advantages_lengths_and_merging(make_model: MakeModel, make_batch: MakeBatch) -> None:
    batch = make_batch(((1, 0), (1, 1)))
    report = Learner(make_model(), TrainJob()).step(batch)
    metrics = report.metrics
    assert all(math.isfinite(value) for value in metrics.values())
    assert metrics["critic/score/mean"] == pytest.approx(0.75)
    assert metrics["critic/score/std"] == pytest.approx(math.sqrt(0.1875))
    assert metrics["rollout/groups"] == 2
    assert metrics["rollout/groups_zero_advantage"] == 1
    assert metrics["rollout/episodes"] == 4
    assert metrics["rollout/trained_tokens"] == sum(episode.trained_tokens for episode in batch.episodes)
    assert metrics["merge/samples"] == sum(len(episode.samples) for episode in batch.episodes)
    assert metrics["merge/tokens"] == sum(len(s.token_ids_T) for e in batch.episodes for s in e.samples)
    assert metrics["timing_s/step"] > 0
    assert report.advantages.keys() == {episode.episode_id for episode in batch.episodes}
    assert report.advantages["e0-0"] == pytest.approx(0.7071, abs=1e-3)
    assert report.advantages["e1-0"] == 0


def test_tokens_before_merging_are_those_of_one_sample_per_turn(make_model: MakeModel, make_batch: MakeBatch) -> None:
    merged = Learner(make_model(), TrainJob()).step(make_batch(merged=True)).metrics
    apart = Learner(make_model(), TrainJob()).step(make_batch(merged=False)).metrics
    assert merged["merge/tokens"] < merged["merge/tokens_unmerged"]
    assert merged["merge/tokens_unmerged"] == apart["merge/tokens"] == apart["merge/tokens_unmerged"]


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_recorded_at_any_temperature_leave_no_gap(
    make_model: MakeModel, make_batch: MakeBatch, temperature: float
) -> None:
    batch = make_batch(noise=0.0, temperature=temperature)
    metrics = Learner(make_model(), TrainJob()).step(batch).metrics
    gap = metrics["training/rollout_logprob_gap_max"]
    # The recorder keeps logprobs below -1e-4.
    assert gap < 1.1e-4, f"logprob gap {gap:.2e}"
    assert metrics["training/rollout_logprob_gap_mean"] < 1e-5
    assert metrics["actor/ppo_kl"] == pytest.approx(0.0, abs=1e-5)


def test_same_seed_and_batch_give_bit_identical_weights(make_model: MakeModel, make_batch: MakeBatch) -> None:
    job = TrainJob(mini_batch_num=3, ppo_epochs=2, policy_loss="clip_cov", lr=1e-2)
    results = []
    for noise_in_global_generator in (0, 1):
        model = make_model()
        torch.manual_seed(noise_in_global_generator)
        Learner(model, job).step(make_batch())
        results.append(weights(model))
    assert torch.equal(results[0], results[1])


def test_another_seed_shuffles_differently() -> None:
    drawn = [list(draw_minibatches(20, TrainJob(seed=seed, mini_batch_num=3), step=1)) for seed in (0, 1)]
    assert drawn[0] != drawn[1]


@pytest.mark.parametrize(("rows", "parts", "epochs"), [(20, 3, 2), (2, 5, 1), (1, 1, 3)])
def test_each_epoch_uses_every_row_once(rows: int, parts: int, epochs: int) -> None:
    drawn = list(draw_minibatches(rows, TrainJob(mini_batch_num=parts, ppo_epochs=epochs), step=4))
    per_epoch = min(parts, rows)
    assert len(drawn) == epochs * per_epoch
    for start in range(0, len(drawn), per_epoch):
        sizes = [len(part) for part in drawn[start : start + per_epoch]]
        assert max(sizes) - min(sizes) <= 1
        assert sorted(number for part in drawn[start : start + per_epoch] for number in part) == list(range(rows))


def test_minibatches_and_epochs_each_update_once(make_model: MakeModel, make_batch: MakeBatch) -> None:
    job = TrainJob(mini_batch_num=2, ppo_epochs=3)
    metrics = Learner(make_model(), job).step(make_batch(((1, 0, 0, 1), (0, 1, 0, 1)))).metrics
    assert metrics["actor/updates"] == 6


def test_a_batch_without_signal_changes_nothing_and_still_reports(make_model: MakeModel, make_batch: MakeBatch) -> None:
    model = make_model()
    learner = Learner(model, TrainJob(lr=1e-2, weight_decay=0.1))
    learner.step(make_batch())
    before = weights(model)
    metrics = learner.step(make_batch(((1, 1), (0, 0, 0)), step=2)).metrics
    assert torch.equal(weights(model), before)
    assert metrics["actor/updates"] == 0
    assert metrics["actor/updates_without_signal"] == 1
    assert metrics["rollout/groups_zero_advantage"] == 2
    assert metrics["critic/score/mean"] == pytest.approx(0.4)


def test_a_batch_without_groups_changes_nothing_and_still_reports(make_model: MakeModel) -> None:
    model = make_model()
    before = weights(model)
    report = Learner(model, TrainJob()).step(TrainBatch("b", 1, ()))
    assert report.metrics["rollout/episodes"] == 0
    assert report.advantages == {}
    assert torch.equal(weights(model), before)


def test_kl_term_pulls_back_to_the_base_model_even_without_advantages(
    make_model: MakeModel, make_batch: MakeBatch
) -> None:
    model = make_model()
    learner = Learner(model, TrainJob(use_kl_loss=True, kl_loss_coef=1.0, lr=3e-3))
    base = weights(model)
    constant = make_batch(((1, 1), (0, 0)))
    assert learner.step(constant).metrics["actor/kl_loss"] == pytest.approx(0.0, abs=1e-6)
    learner.step(make_batch())
    pulled = [learner.step(constant).metrics["actor/kl_loss"] for _ in range(5)]
    assert not torch.equal(weights(model), base)
    assert 0 < pulled[-1] < pulled[0]


def test_entropy_term_raises_entropy(make_model: MakeModel, make_batch: MakeBatch) -> None:
    learner = Learner(make_model(), TrainJob(entropy_coeff=1.0, lr=1e-3))
    entropies = [learner.step(make_batch(((1, 1), (0, 0)))).metrics["actor/entropy"] for _ in range(3)]
    assert entropies[0] < entropies[1] < entropies[2]


def poisoned(batch: TrainBatch) -> TrainBatch:
    """The same batch with one recorded logprob that is not a number."""
    first, *others = batch.groups[0].episodes
    sample = first.samples[0]
    place = sample.loss_mask_T.index(True)
    logprobs = (*sample.logprobs_T[:place], math.nan, *sample.logprobs_T[place + 1 :])
    spoiled = replace(first, samples=(replace(sample, logprobs_T=logprobs), *first.samples[1:]))
    group = Group(batch.groups[0].task_id, (spoiled, *others))
    return replace(batch, groups=(group, *batch.groups[1:]))


def test_a_minibatch_with_a_loss_that_is_not_finite_is_skipped_and_counted(
    make_model: MakeModel, make_batch: MakeBatch
) -> None:
    model = make_model()
    before = weights(model)
    metrics = Learner(model, TrainJob(mini_batch_num=4)).step(poisoned(make_batch(((1, 0, 0, 1),)))).metrics
    assert metrics["actor/updates_not_finite"] == 1
    assert metrics["actor/updates"] == 3
    assert all(math.isfinite(value) for value in metrics.values())
    after = weights(model)
    assert torch.isfinite(after).all()
    assert not torch.equal(after, before)


def test_an_interrupted_step_leaves_weights_and_optimizer_as_they_were(
    make_model: MakeModel, make_batch: MakeBatch
) -> None:
    job = TrainJob(mini_batch_num=3, lr=1e-2, share_prefixes="off")
    undisturbed, model = make_model(), make_model()
    learner, other = Learner(model, job), Learner(undisturbed, job)
    learner.step(make_batch())
    other.step(make_batch())
    before = weights(model)
    with raises_in_pass(model, 2, TimeoutError()), pytest.raises(TimeoutError):
        learner.step(make_batch(seed=1, step=2))
    assert torch.equal(weights(model), before)
    assert all(weight.grad is None for weight in model.parameters())

    learner.step(make_batch(seed=1, step=2))
    other.step(make_batch(seed=1, step=2))
    assert torch.equal(weights(model), weights(undisturbed))


def test_an_interrupted_single_update_leaves_weights_as_they_were(make_model: MakeModel, make_batch: MakeBatch) -> None:
    model = make_model()
    before = weights(model)
    learner = Learner(model, TrainJob())
    with raises_in_pass(model, 0, KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
        learner.step(make_batch())
    assert torch.equal(weights(model), before)
    assert all(weight.grad is None for weight in model.parameters())


def test_learning_rate_warms_up_linearly_by_steps(make_model: MakeModel, make_batch: MakeBatch) -> None:
    learner = Learner(make_model(), TrainJob(lr=1e-3, lr_warmup_steps=4))
    rates = [learner.step(make_batch(step=step)).metrics["actor/lr"] for step in range(1, 7)]
    assert rates == pytest.approx([0.25e-3, 0.5e-3, 0.75e-3, 1e-3, 1e-3, 1e-3])


def test_dropout_is_off_in_training(make_model: MakeModel) -> None:
    model = make_model().train()
    Learner(model, TrainJob())
    assert not model.training
