"""A whole step: it learns, reports, repeats itself, and changes everything or nothing."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from changed_batches import with_episodes, with_greedy, with_named_rewards, with_samples
from late import Late
from loss_matrix import job_with_loss
from tiny_models import MakeBatch, MakeModel, raises_in_pass, random_model

from swarm.errors import EngineFailure
from swarm.job import TrainJob
from swarm.job.checks import REJECTIONS
from swarm.trainer.schedule import draw_minibatches
from swarm.trainer.token_rows import build_rows
from swarm.types import FinishedEpisode, Sample, StepReport, TrainBatch

torch, plain, learning = Late("torch"), Late("plain_gradients"), Late("swarm.backends.local.learning.learner")
corrections = Late("verl.trainer.ppo.rollout_corr_helper")
losses, optimizing = Late("swarm.backends.local.learning.losses"), Late("swarm.backends.local.learning.optimizer")
microbatches = Late("swarm.backends.local.learning.microbatches")
updating = Late("swarm.backends.local.learning.updater")

LEVELS = ["token", "sequence"]
STALE = 0.4
"""Spread of the recorded logprobs around the exact ones: ratios of 0.3 to 3."""
OPTIMAL = {"algorithm": "optimal_token_baseline"}
TIS = {"rollout_is": "token", "rollout_is_threshold": 1.2}


def job_of(**given: Any) -> TrainJob:
    return TrainJob.model_validate(given)


def step(model: torch.nn.Module, batch: TrainBatch, weight_version: int | None = None, **given: Any) -> StepReport:
    return learning.Learner(model, job_of(**given)).step(batch, weight_version=weight_version)


def weights(module: torch.nn.Module) -> torch.Tensor:
    return torch.cat([weight.detach().flatten().clone() for weight in module.parameters()])


def reward_weighted_logprob(module: torch.nn.Module, batch: TrainBatch) -> float:
    """What policy gradients raise: summed logprobs times the reward above 0.5."""
    return sum(
        (episode.reward - 0.5) * logprob.item()
        for episode in batch.episodes
        for logprob, _, _ in plain.plain_logprobs(module, episode, 1.0)
    )


def test_steps_raise_the_probability_of_what_was_rewarded(make_model: MakeModel, make_batch: MakeBatch) -> None:
    model, batch = make_model(), make_batch(((1, 0), (0, 1)), noise=0.0)
    before = reward_weighted_logprob(model, batch)
    report = step(model, batch, lr=1e-3)
    assert reward_weighted_logprob(model, batch) > before
    assert report.metrics["actor/updates"] == 1
    assert report.metrics["actor/grad_norm"] > 0


def test_report_gives_scores_advantages_lengths_and_merging(make_model: MakeModel, make_batch: MakeBatch) -> None:
    batch = make_batch(((1, 0), (1, 1)))
    report = step(make_model(), batch)
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
    assert not [name for name in metrics if name.startswith(("staleness/", "rollout_corr/", "critic/return/"))]
    assert report.advantages.keys() == {episode.episode_id for episode in batch.episodes}
    assert report.advantages["e0-0"] == pytest.approx(0.7071, abs=1e-3)
    assert report.advantages["e1-0"] == 0


def test_tokens_before_merging_are_those_of_one_sample_per_turn(make_model: MakeModel, make_batch: MakeBatch) -> None:
    merged, apart = (step(make_model(), make_batch(merged=merged)).metrics for merged in (True, False))
    assert merged["merge/tokens"] < merged["merge/tokens_unmerged"]
    assert merged["merge/tokens_unmerged"] == apart["merge/tokens"] == apart["merge/tokens_unmerged"]


def test_a_step_learns_from_named_rewards_and_reports_them(make_model: MakeModel, make_batch: MakeBatch) -> None:
    batch = with_episodes(
        with_named_rewards(make_batch(((1, 0), (0, 1)))), lambda _number, each: replace(each, reward=0.0)
    )
    report = step(make_model(), batch, algorithm="gdpo", gdpo_reward_keys=["right", "short"])
    assert report.metrics["actor/updates"] == 1
    assert report.metrics["gdpo/right/mean"] == 0.5
    assert report.metrics["gdpo/short/std"] == pytest.approx(0.15)
    assert report.metrics["critic/score/mean"] == 0
    assert len({round(value, 6) for value in report.advantages.values()}) > 1


REMAX = {"algorithm": "remax", "num_repeat": 3}


def test_a_step_trains_all_but_the_greedy_episodes_and_reports_their_rewards(
    make_model: MakeModel, make_batch: MakeBatch
) -> None:
    report = step(make_model(), with_greedy(make_batch(((1, 0, 0.5), (0, 0, 0.25)))), **REMAX, batch_size=2)
    assert report.metrics["actor/updates"] == 1
    assert report.metrics["rollout/episodes"] == 4
    assert report.metrics["critic/greedy_score/mean"] == 0.375
    assert report.advantages == pytest.approx({"e0-0": 0.5, "e0-1": -0.5, "e1-0": -0.25, "e1-1": -0.25})


def test_the_tokens_of_the_greedy_episode_do_not_change_a_step(make_model: MakeModel, make_batch: MakeBatch) -> None:
    batch, other = (with_greedy(make_batch(((1, 0, 0.5),), seed=seed)) for seed in (0, 1))
    swapped = replace(batch, groups=(replace(batch.groups[0], greedy=other.groups[0].greedy),))
    models = [make_model() for _ in range(2)]
    for model, each in zip(models, (batch, swapped), strict=True):
        step(model, each, **REMAX, batch_size=1, loss_agg_mode="token-mean")
    assert torch.equal(*map(weights, models))


def test_report_gives_returns_and_the_mean_advantage_over_the_tokens_of_an_episode(
    make_model: MakeModel, make_batch: MakeBatch
) -> None:
    """A group of equal rewards learns from its turn rewards."""

    def rewarded(number: int, episode: FinishedEpisode) -> FinishedEpisode:
        turns = 1 + max(max(sample.turn_indices_T) for sample in episode.samples)
        return replace(episode, turn_rewards=None if number else tuple(0.5 - 0.1 * turn for turn in range(turns)))

    batch = with_episodes(make_batch(((1, 1, 1),)), rewarded)
    report = step(make_model(), batch)
    returns = [episode.reward + sum(episode.turn_rewards or ()) for episode in batch.episodes]
    assert report.metrics["critic/return/mean"] == pytest.approx(statistics.mean(returns))
    assert report.metrics["critic/return/max"] == pytest.approx(max(returns))
    assert report.metrics["critic/score/mean"] == 1
    assert report.metrics["actor/updates"] == 1
    rows = build_rows(batch)
    advantages = plain.compute_advantages(rows, TrainJob())
    for row, line in zip(rows, advantages, strict=True):
        assert report.advantages[row.episode_id] == pytest.approx(line[: row.tokens].mean().item())


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_recorded_at_any_temperature_leave_no_gap(
    make_model: MakeModel, make_batch: MakeBatch, temperature: float
) -> None:
    metrics = step(make_model(), make_batch(noise=0.0, temperature=temperature)).metrics
    # The recorder keeps logprobs below -1e-4.
    assert metrics["training/rollout_logprob_gap_max"] < 1.1e-4
    assert metrics["training/rollout_logprob_gap_mean"] < 1e-5
    assert metrics["actor/ppo_kl"] == pytest.approx(0.0, abs=1e-5)


@pytest.mark.parametrize("given", [{"policy_loss": "clip_cov"}, TIS, OPTIMAL, {**OPTIMAL, **TIS}], ids=str)
def test_same_seed_and_batch_give_bit_identical_weights(
    make_model: MakeModel, make_batch: MakeBatch, given: dict[str, Any]
) -> None:
    models = [make_model() for _ in range(2)]
    for noise_in_global_generator, model in enumerate(models):
        torch.manual_seed(noise_in_global_generator)
        step(model, make_batch(noise=STALE), **given, mini_batch_num=3, ppo_epochs=2, lr=1e-2)
        assert not plain.flat_gradient(model).any()
    assert torch.equal(*map(weights, models))
    assert not torch.equal(weights(models[0]), weights(make_model()))


@pytest.mark.parametrize(("rows", "parts", "epochs"), [(20, 3, 2), (2, 5, 1), (1, 1, 3)])
def test_each_epoch_uses_every_row_once_in_an_order_of_the_seed(rows: int, parts: int, epochs: int) -> None:
    drawn, other = (
        list(draw_minibatches(rows, TrainJob(seed=seed, mini_batch_num=parts, ppo_epochs=epochs), step=4))
        for seed in (0, 1)
    )
    per_epoch = min(parts, rows)
    assert len(drawn) == epochs * per_epoch
    assert rows < 3 or drawn != other
    for start in range(0, len(drawn), per_epoch):
        sizes = [len(part) for part in drawn[start : start + per_epoch]]
        assert max(sizes) - min(sizes) <= 1
        assert sorted(number for part in drawn[start : start + per_epoch] for number in part) == list(range(rows))


def test_minibatches_and_epochs_each_update_once(make_model: MakeModel, make_batch: MakeBatch) -> None:
    batch = make_batch(((1, 0, 0, 1), (0, 1, 0, 1)))
    assert step(make_model(), batch, mini_batch_num=2, ppo_epochs=3).metrics["actor/updates"] == 6


@pytest.mark.parametrize(
    "job",
    [TrainJob(lr=1e-2, weight_decay=0.1), TrainJob(rollout_is="token"), job_with_loss("dro", mini_batch_num=2)],
    ids=["grpo", "importance sampling", "dro"],
)
def test_a_batch_without_signal_is_not_scored_changes_nothing_and_still_reports(
    make_model: MakeModel, make_batch: MakeBatch, job: TrainJob
) -> None:
    model = plain.nudged(make_model())
    learner, before = learning.Learner(model, job), weights(model)
    with raises_in_pass(model, 0, AssertionError("a pass")):
        metrics = learner.step(make_batch(((1, 1), (0, 0, 0)))).metrics
    assert torch.equal(weights(model), before)
    assert (metrics["actor/updates"], metrics["actor/updates_without_signal"]) == (0, job.mini_batch_num)
    assert metrics["rollout/groups_zero_advantage"] == 2
    assert metrics["critic/score/mean"] == pytest.approx(0.4)
    assert not any(name.startswith("rollout_corr/") for name in metrics)
    report = learner.step(TrainBatch("b", 2, ()))
    assert (report.metrics["rollout/episodes"], report.advantages) == (0, {})
    assert torch.equal(weights(model), before)


def test_rows_of_zero_advantage_skip_the_forward_pass(make_model: MakeModel, make_batch: MakeBatch) -> None:
    model, batch = make_model(), make_batch(((1, 0), (1, 1, 1), (0, 0), (0.5, 1)))
    rows_run: list[int] = []
    model.base_model.register_forward_hook(  # type: ignore[operator, union-attr]
        lambda _module, _args, kwargs, _output: rows_run.append(kwargs["input_ids"].shape[0]), with_kwargs=True
    )
    plain.learner_gradient(model, TrainJob(), batch)
    probes = 2
    assert sum(rows_run) == probes + sum(len(e.samples) for place in (0, 3) for e in batch.groups[place].episodes)


def test_kl_term_pulls_back_to_the_base_model_even_without_advantages(
    make_model: MakeModel, make_batch: MakeBatch
) -> None:
    model = make_model()
    learner = learning.Learner(model, TrainJob(use_kl_loss=True, kl_loss_coef=1.0, lr=3e-3))
    base = weights(model)
    constant = make_batch(((1, 1), (0, 0)))
    assert learner.step(constant).metrics["actor/kl_loss"] == pytest.approx(0.0, abs=1e-6)
    learner.step(make_batch())
    pulled = [learner.step(constant).metrics["actor/kl_loss"] for _ in range(5)]
    assert not torch.equal(weights(model), base)
    assert 0 < pulled[-1] < pulled[0]


def test_entropy_term_raises_entropy(make_model: MakeModel, make_batch: MakeBatch) -> None:
    learner = learning.Learner(make_model(), TrainJob(entropy_coeff=1.0, lr=1e-3))
    entropies = [learner.step(make_batch(((1, 1), (0, 0)))).metrics["actor/entropy"] for _ in range(3)]
    assert entropies[0] < entropies[1] < entropies[2]


@pytest.mark.parametrize("level", ["off", *LEVELS])
def test_a_minibatch_with_a_loss_that_is_not_finite_is_skipped_and_counted(
    make_model: MakeModel, make_batch: MakeBatch, level: str
) -> None:
    def spoiled(sample: Sample) -> Sample:
        return replace(sample, logprobs_T=tuple(math.nan if mask else 0.0 for mask in sample.loss_mask_T))

    batch = with_episodes(
        make_batch(((1, 0, 0, 1),)),
        lambda number, each: each if number else replace(each, samples=(spoiled(each.samples[0]), *each.samples[1:])),
    )
    model = make_model()
    metrics = step(model, batch, rollout_is=level, mini_batch_num=4).metrics
    assert (metrics["actor/updates_not_finite"], metrics["actor/updates"]) == (1, 3)
    assert all(math.isfinite(value) for value in metrics.values())
    assert torch.isfinite(weights(model)).all()
    assert not torch.equal(weights(model), weights(make_model()))


@pytest.mark.parametrize(
    ("job", "number", "error"),
    [
        (TrainJob(mini_batch_num=3, lr=1e-2, share_prefixes="off"), 2, TimeoutError),
        (TrainJob(), 0, KeyboardInterrupt),
        (TrainJob(algorithm="gae", lr=1e-3, critic_lr=1e-2, mini_batch_num=2), 1, EngineFailure),
    ],
    ids=["third minibatch", "single update", "critic"],
)
def test_an_interrupted_step_leaves_weights_optimizer_and_critic_as_they_were(
    make_model: MakeModel, make_batch: MakeBatch, job: TrainJob, number: int, error: type[BaseException]
) -> None:
    models = [make_model(), make_model()]
    learner, undisturbed = (learning.Learner(each, job) for each in models)
    for each in (learner, undisturbed):
        each.step(make_batch())
    before = weights(models[0])
    with raises_in_pass(models[0], number, error("given up")), pytest.raises(error, match="given up"):
        learner.step(make_batch(seed=1, step=2))
    assert torch.equal(weights(models[0]), before)
    assert all(weight.grad is None for weight in models[0].parameters())
    after, expected = (each.step(make_batch(seed=1, step=2)).metrics for each in (learner, undisturbed))
    assert torch.equal(*map(weights, models))
    assert after.get("critic/vf_loss") == expected.get("critic/vf_loss")


def test_dropout_is_off_in_training(make_model: MakeModel) -> None:
    model = make_model().train()
    learning.Learner(model, TrainJob())
    assert not model.training


def with_versions(batch: TrainBatch, version_of: Callable[[str, int], int]) -> TrainBatch:
    """`version_of` gets the id of the episode and the position of the token."""

    def versioned(sample: Sample) -> Sample:
        versions = (
            version_of(sample.episode_id, place) if trained else -1 for place, trained in enumerate(sample.loss_mask_T)
        )
        return replace(sample, weight_versions_T=tuple(versions))

    return with_samples(batch, versioned)


def test_staleness_counts_versions_over_trained_tokens(make_model: MakeModel, make_batch: MakeBatch) -> None:
    batch = with_versions(make_batch(), lambda _episode, place: 5 - place % 3)
    versions = [version for each in batch.episodes for sample in each.samples for version in sample.weight_versions_T]
    ages = [7 - version for version in versions if version >= 0]
    metrics = step(make_model(), batch, weight_version=7, max_staleness=4).metrics
    assert metrics["staleness/mean"] == pytest.approx(sum(ages) / len(ages))
    assert metrics["staleness/max"] == max(ages) == 4


def test_the_gap_to_the_sampler_is_measured_on_tokens_of_the_present_weights(
    make_model: MakeModel, make_batch: MakeBatch
) -> None:
    exact, noisy = make_batch(noise=0.0), make_batch(noise=0.5)
    mixed = replace(exact, groups=(noisy.groups[0], *exact.groups[1:]))
    batch = with_versions(mixed, lambda episode, _place: 2 if episode.startswith("e0") else 3)
    gap = "training/rollout_logprob_gap_max"
    found = {
        version: step(make_model(), batch, version, max_staleness=1).metrics.get(gap, -1.0) for version in (3, None, 4)
    }
    assert 0 < found[3] < 1.1e-4 and found[None] > 0.1 and found[4] == -1.0


@pytest.mark.parametrize("level", LEVELS)
def test_on_policy_data_has_importance_weights_of_one(make_model: MakeModel, make_batch: MakeBatch, level: str) -> None:
    metrics = step(make_model(), make_batch(noise=0.0), rollout_is=level).metrics
    assert metrics["rollout_corr/rollout_is_max"] == pytest.approx(1, abs=1e-5)
    assert metrics["rollout_corr/rollout_is_min"] == pytest.approx(1, abs=1e-5)
    assert metrics["rollout_corr/kl"] == pytest.approx(0, abs=1e-5)


def test_minibatches_are_weighed_by_the_weights_of_the_start_of_the_step(
    make_model: MakeModel, make_batch: MakeBatch
) -> None:
    batch, found = make_batch(noise=STALE), list[dict[str, float]]()
    for parts, epochs in ((1, 1), (3, 2)):
        given = {"rollout_is": "sequence", "lr": 0.05, "mini_batch_num": parts, "ppo_epochs": epochs}
        metrics = step(make_model(), batch, **given).metrics
        found.append({name: value for name, value in metrics.items() if name.startswith("rollout_corr/")})
    assert found[0]
    assert found[1] == pytest.approx(found[0], rel=1e-4, abs=1e-5)


def test_only_jobs_that_allow_stale_tokens_correct_by_default(make_model: MakeModel, make_batch: MakeBatch) -> None:
    assert "rollout_corr/kl" in step(make_model(), make_batch(noise=STALE), max_staleness=1).metrics
    assert job_of(policy_loss="bypass_mode", max_staleness=2).resolve().rollout_is == "off"


def test_rejected_tokens_and_episodes_are_reported_and_a_batch_that_is_rejected_whole_trains_nothing(
    make_model: MakeModel, make_batch: MakeBatch
) -> None:
    assert set(REJECTIONS) == corrections.SUPPORTED_ROLLOUT_RS_OPTIONS
    bypass, batch = {"policy_loss": "bypass_mode"}, make_batch(((1, 0, 0.25), (0, 1)))
    tokens = [each for episode in batch.episodes for each in plain.plain_logprobs(make_model(), episode, 1.0)]
    # verl's k1 is that of the sampler's probability over the policy's.
    kept = [0.9 <= math.exp(old - new.item()) <= 1.2 for new, _, old in tokens]
    metrics = step(make_model(), batch, **bypass, rollout_rs="token_k1", rollout_rs_threshold="0.9_1.2").metrics
    assert 0 < sum(kept) < len(kept)
    assert metrics["rollout_corr/rollout_rs_masked_fraction"] == pytest.approx(1 - sum(kept) / len(kept), abs=1e-5)
    metrics = step(make_model(), batch, **bypass, rollout_rs="seq_max_k2", rollout_rs_threshold=1e-9).metrics
    assert metrics["rollout_corr/rollout_rs_seq_masked_fraction"] == 1
    assert metrics["actor/grad_norm"] == 0


FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "mistral-window": ("Mistral", {"sliding_window": 4}),
    "gemma2-capped": ("Gemma2", {"final_logit_softcapping": 2.0, "sliding_window": 4, "head_dim": 16}),
    "gpt2": ("GPT2", {"vocab_size": 61}),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_equal_a_forward_pass_of_each_sample_alone(make_batch: MakeBatch, family: str) -> None:
    """Each trained token is sampled at a temperature of its own."""
    kind, sizes = FAMILIES[family]
    model = random_model(kind, **sizes)
    batch = with_samples(
        make_batch(merged=False),
        lambda sample: replace(
            sample, temperatures_T=tuple(0.5 + 0.1 * place for place in range(len(sample.token_ids_T)))
        ),
    )
    rows = build_rows(batch)
    micro = microbatches.collate(rows, range(len(rows)), torch.zeros(len(rows), 99), torch.device("cpu"))
    expected = []
    with torch.no_grad():
        got = updating.TokenScorer(model)(micro).logprobs_N
        for sample in (sample for episode in batch.episodes for sample in episode.samples):
            ids = torch.tensor([sample.token_ids_T])
            logprobs = torch.log_softmax(
                model(input_ids=ids).logits[0, :-1] / torch.tensor(sample.temperatures_T)[1:, None], -1
            )
            expected.append(logprobs.gather(1, ids[0, 1:, None])[:, 0][torch.tensor(sample.loss_mask_T[1:])])
    gap = (got - torch.cat(expected)).abs().max().item()
    assert gap < 1e-5, f"largest logprob gap {gap:.2e}"


def test_small_updates_are_not_rounded_away_in_low_precision(make_model: MakeModel, make_batch: MakeBatch) -> None:
    model = make_model(dtype="bfloat16")
    before, learner = weights(model), learning.Learner(model, TrainJob(lr=1e-5))
    for number in range(1, 41):
        learner.step(make_batch(step=number))
    assert weights(model).dtype == torch.bfloat16
    moved = (weights(model) != before).float().mean().item()
    assert moved > 0.1, f"{moved:.1%} of the weights moved"


def test_frozen_weights_are_left_alone(make_model: MakeModel, make_batch: MakeBatch) -> None:
    model = make_model()
    frozen = model.get_input_embeddings().weight.requires_grad_(False)  # type: ignore[operator]
    before = frozen.detach().clone()
    step(model, make_batch(), lr=1e-2)
    assert torch.equal(frozen, before)


def test_optimizer_reports_the_norm_before_clipping_and_refuses_a_gradient_that_is_not_finite(
    make_model: MakeModel,
) -> None:
    model = make_model()
    optimizer, before = optimizing.PolicyOptimizer(model, TrainJob(grad_clip=0.5).resolve()), weights(model)
    for weight in model.parameters():
        weight.grad = torch.ones_like(weight)
    assert optimizer.update(lr=0.0) == pytest.approx(len(before) ** 0.5, rel=1e-5)
    for weight in model.parameters():
        weight.grad = torch.full_like(weight, torch.inf)
    assert optimizer.update(lr=0.1) is None
    assert torch.equal(weights(model), before)
    assert all(weight.grad is None for weight in model.parameters())
