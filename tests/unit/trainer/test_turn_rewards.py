"""Turn rewards: the advantages of each turn are verl's numbers for the group's returns from that turn on."""

from __future__ import annotations

import statistics
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_rows import BY_OUTCOME, make_row, policy_of, verl_advantages
from tiny_models import MakeBatch, MakeModel

from swarm.job import TrainJob
from swarm.trainer.token_rows import Row, build_rows
from swarm.types import FinishedEpisode, Group, TrainBatch


@pytest.fixture(scope="module", autouse=True)
def late_imports() -> None:
    global torch, flat_gradient, learner_gradient, plain_gradient, plain_logprobs, ppo_term, relative_error, Learner
    global compute_advantages
    import torch
    from plain_gradients import (
        flat_gradient,
        learner_gradient,
        plain_gradient,
        plain_logprobs,
        ppo_term,
        relative_error,
    )

    from swarm.backends.local.learning.learner import Learner
    from swarm.trainer.advantages import compute_advantages


def job_of(algorithm: str) -> TrainJob:
    return TrainJob.model_validate({"algorithm": algorithm, "gamma": 0.9})


def advantages_of(rows: list[Row], job: TrainJob) -> torch.Tensor:
    return compute_advantages(rows, job, policy_of(rows))


def test_grpo_standardises_the_returns_of_each_turn() -> None:
    rows = [
        make_row(0, 1.0, [2, 1, 1], [0.5, 0.0, -1.0]),
        make_row(0, 0.0, [1, 2], [0.0, 0.25]),
        make_row(0, 0.5, [3], None),
    ]
    returns = [[0.5, 0.25, 0.5], [0.0, 0.25, 0.5], [0.0, 0.0, 0.5]]
    advantages = compute_advantages(rows, job_of("grpo"))
    for turn, (one, two, three) in enumerate(returns):
        mean, deviation = statistics.mean((one, two, three)), statistics.stdev((one, two, three))
        for row, value, line in zip(rows, (one, two, three), advantages, strict=True):
            got = line[: row.tokens][torch.from_numpy(row.turn_indices_L == turn)]
            expected = (value - mean) / (deviation + 1e-6)
            assert got.tolist() == pytest.approx([expected] * len(got), abs=1e-5)


@pytest.mark.parametrize("algorithm", BY_OUTCOME)
def test_each_turn_gets_exactly_the_advantages_of_verl_for_its_returns(algorithm: str) -> None:
    rows = [
        make_row(0, 1.0, [2, 1, 1], [0.5, 0.5, -0.5]),
        make_row(0, 0.0, [1, 2], [0.0, 0.25]),
        make_row(1, 0.5, [3, 1], None),
        make_row(1, 0.25, [1, 1, 2], [1.0, 0.0, 0.5]),
        make_row(1, 0.75, [2], [0.5]),
    ]
    returns_TE = [[1.5, 0.25, 0.5, 1.75, 1.25], [1.0, 0.25, 0.5, 0.75, 0.75], [0.5, 0.0, 0.5, 0.75, 0.75]]
    job = job_of(algorithm)
    got = advantages_of(rows, job)
    for turn, returns in enumerate(returns_TE):
        expected = verl_advantages(rows, returns, job)
        for line, row in enumerate(rows):
            columns = np.flatnonzero(row.turn_indices_L == turn)
            assert torch.equal(got[line, columns], expected[line, columns])
    assert len(got.unique()) > 3


EPISODES = st.tuples(st.sampled_from([-1.0, 0.0, 0.1, 0.25, 1.0]), st.lists(st.integers(1, 3), min_size=1, max_size=4))
GROUPS = st.lists(st.lists(EPISODES, min_size=1, max_size=4), min_size=1, max_size=4)


@settings(deadline=None)
@given(groups=GROUPS, algorithm=st.sampled_from(BY_OUTCOME), given_to=st.integers(0, 15))
def test_turn_rewards_of_zero_change_no_bit(
    groups: list[list[tuple[float, list[int]]]], algorithm: str, given_to: int
) -> None:
    flat = [(number, *episode) for number, group in enumerate(groups) for episode in group]
    plain = [make_row(group, reward, lengths, None) for group, reward, lengths in flat]
    zeros = [
        make_row(group, reward, lengths, [0.0] * len(lengths) if given_to >> place % 4 & 1 else None)
        for place, (group, reward, lengths) in enumerate(flat)
    ]
    job = job_of(algorithm)
    assert torch.equal(advantages_of(zeros, job), advantages_of(plain, job))


@settings(deadline=None)
@given(groups=GROUPS, algorithm=st.sampled_from(BY_OUTCOME), seed=st.integers(0, 99))
def test_advantages_of_turns_are_finite_and_zero_past_the_end_of_a_row(
    groups: list[list[tuple[float, list[int]]]], algorithm: str, seed: int
) -> None:
    random = np.random.default_rng(seed)
    rows = [
        make_row(number, reward, lengths, random.integers(-2, 3, len(lengths)).astype(float).tolist())
        for number, group in enumerate(groups)
        for reward, lengths in group
    ]
    advantages = advantages_of(rows, job_of(algorithm))
    assert torch.isfinite(advantages).all()
    assert all(not line[row.tokens :].any() for row, line in zip(rows, advantages, strict=True))


def test_a_turn_that_all_episodes_return_the_same_from_teaches_nothing() -> None:
    rows = [make_row(0, 0.5, [2, 1], [-0.5, 0.5]), make_row(0, 0.0, [1, 2], [0.5, 0.0])]
    advantages = compute_advantages(rows, job_of("grpo"))
    assert advantages[0].tolist() == pytest.approx([0.0, 0.0, 0.7071], abs=1e-4)
    assert advantages[1].tolist() == pytest.approx([0.0, -0.7071, -0.7071], abs=1e-4)


def test_turn_rewards_go_by_the_index_of_the_turn_also_after_an_aborted_one() -> None:
    rows = [make_row(0, 0.0, [1, 0, 2], [0.0, 5.0, 1.0]), make_row(0, 0.0, [1], None)]
    advantages = compute_advantages(rows, TrainJob(norm_adv_by_std_in_grpo=False))
    assert advantages[0].tolist() == [3.0, 0.5, 0.5]
    assert advantages[1].tolist() == [-3.0, 0.0, 0.0]


def with_turn_rewards(batch: TrainBatch) -> TrainBatch:
    """The same batch with turn rewards for every second episode."""
    random = np.random.default_rng(0)

    def rewarded(number: int, episode: FinishedEpisode) -> FinishedEpisode:
        turns = 1 + max(max(sample.turn_indices_T) for sample in episode.samples)
        rewards = tuple(random.normal(size=turns).tolist())
        return episode if number % 2 else replace(episode, turn_rewards=rewards)

    groups = [
        replace(group, episodes=tuple(rewarded(number, episode) for number, episode in enumerate(group.episodes)))
        for group in batch.groups
    ]
    return replace(batch, groups=tuple(groups))


def plain_loss(module: torch.nn.Module, batch: TrainBatch) -> torch.Tensor:
    """GRPO over the returns of each turn, mean over all tokens."""
    terms = []
    for group in batch.groups:
        for episode in group.episodes:
            turns = [turn for sample in episode.samples for turn in sample.turn_indices_T if turn >= 0]
            for turn, (new, _, old) in zip(turns, plain_logprobs(module, episode, 1.0), strict=True):
                terms.append(ppo_term(new, old, plain_advantage(group, episode, turn)))
    return torch.stack(terms).mean()


def plain_advantage(group: Group, episode: FinishedEpisode, turn: int) -> float:
    returns = [each.reward + sum((each.turn_rewards or ())[turn:]) for each in group.episodes]
    own = returns[group.episodes.index(episode)]
    return (own - statistics.mean(returns)) / (statistics.stdev(returns) + 1e-6)


@pytest.mark.parametrize("merged", [True, False])
def test_the_gradient_equals_a_plain_implementation(make_model: MakeModel, make_batch: MakeBatch, merged: bool) -> None:
    model = make_model()
    batch = with_turn_rewards(make_batch(((1, 0, 0.5), (0, 1), (0.25, 0, 1)), merged=merged))
    loss, gradient = learner_gradient(model, TrainJob(), batch)
    plain, expected = plain_gradient(model, lambda: plain_loss(model, batch))
    error = relative_error(gradient, expected)
    assert error < 1e-5, f"relative gradient error {error:.2e}"
    assert loss == pytest.approx(plain, abs=1e-6)


@pytest.mark.parametrize("policy_loss", ["vanilla", "gspo", "geo_mean"])
def test_merging_does_not_change_the_gradient(make_model: MakeModel, make_batch: MakeBatch, policy_loss: str) -> None:
    job = TrainJob.model_validate({"policy_loss": policy_loss, "rollout_is": "sequence"})
    model = make_model()
    _, together = learner_gradient(model, job, with_turn_rewards(make_batch(merged=True)))
    _, apart = learner_gradient(model, job, with_turn_rewards(make_batch(merged=False)))
    error = relative_error(together, apart)
    assert error < 1e-5, f"relative gradient error {error:.2e}"


def test_report_gives_returns_and_the_mean_advantage_over_the_tokens_of_an_episode(
    make_model: MakeModel, make_batch: MakeBatch
) -> None:
    plain, batch = make_batch(), with_turn_rewards(make_batch())
    returns = [episode.reward + sum(episode.turn_rewards or ()) for episode in batch.episodes]
    report = Learner(make_model(), TrainJob()).step(batch)
    assert report.metrics["critic/return/mean"] == pytest.approx(statistics.mean(returns))
    assert report.metrics["critic/return/max"] == pytest.approx(max(returns))
    assert report.metrics["critic/score/mean"] == pytest.approx(statistics.mean(e.reward for e in batch.episodes))
    rows = build_rows(batch)
    advantages = compute_advantages(rows, TrainJob())
    for row, line in zip(rows, advantages, strict=True):
        assert report.advantages[row.episode_id] == pytest.approx(line[: row.tokens].mean().item())
    assert "critic/return/mean" not in Learner(make_model(), TrainJob()).step(plain).metrics


def test_a_group_of_equal_rewards_learns_from_its_turn_rewards(make_model: MakeModel, make_batch: MakeBatch) -> None:
    model = make_model()
    learner_gradient(model, TrainJob(), with_turn_rewards(make_batch(((1, 1, 1),))))
    assert flat_gradient(model).any()
