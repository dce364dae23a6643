"""Advantages: verl's numbers for groups that can be compared, zero for those that cannot."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.estimators import ESTIMATORS
from swarm.job import TrainJob
from swarm.trainer.token_rows import Row, ScoredSample


@pytest.fixture(scope="module", autouse=True)
def late_imports() -> None:
    global torch, AlgoConfig, get_adv_estimator_fn, compute_advantages, PolicyStatistics
    import torch
    from verl.trainer.config import AlgoConfig
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn

    from swarm.trainer.advantages import PolicyStatistics, compute_advantages


EVERY_ESTIMATOR = [
    "grpo",
    "grpo_vectorized",
    "grpo_passk",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "rloo",
    "rloo_vectorized",
    "opo",
    "gpg",
    "optimal_token_baseline",
    "tir_optimal_token_baseline",
]
GROUP_RELATIVE = [name for name in EVERY_ESTIMATOR if name != "reinforce_plus_plus"]


def make_row(group: int, reward: float, tokens: int) -> Row:
    ids = np.arange(tokens + 1)
    sample = ScoredSample(ids, ids[1:], ids[:-1], np.ones(tokens, dtype=np.float32))
    return Row(
        episode_id=f"e{group}",
        group=group,
        reward=reward,
        turn_rewards=None,
        samples=(sample,),
        rollout_logprobs_L=np.full(tokens, -1.0, dtype=np.float32),
        turn_indices_L=np.zeros(tokens, dtype=np.int64),
        weight_versions_L=np.zeros(tokens, dtype=np.int64),
    )


def make_rows(groups: list[list[float]], lengths: tuple[int, ...] = (3, 1, 4, 2)) -> list[Row]:
    flat = [(number, reward) for number, rewards in enumerate(groups) for reward in rewards]
    return [make_row(group, reward, lengths[place % len(lengths)]) for place, (group, reward) in enumerate(flat)]


def job_of(algorithm: str, **settings: object) -> TrainJob:
    return TrainJob.model_validate({"algorithm": algorithm, **settings})


def policy_of(rows: list[Row]) -> PolicyStatistics:
    """Made-up probabilities of every token, each another, and the squares of all."""
    cells = torch.arange(len(rows) * max(row.tokens for row in rows)).reshape(len(rows), -1)
    probabilities = 0.1 + 0.8 * (cells % 7) / 7
    return PolicyStatistics(probabilities.log(), probabilities.square() + (1 - probabilities).square() / 3)


def advantages_of(rows: list[Row], job: TrainJob) -> torch.Tensor:
    return compute_advantages(rows, job, policy_of(rows))


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("algorithm", EVERY_ESTIMATOR)
def test_comparable_groups_get_exactly_the_advantages_of_verl(algorithm: str, normalise: bool) -> None:
    rows = make_rows([[1, 0, 0.5], [0, 1], [0.25, 0.75, 0, 1]])
    got = advantages_of(rows, job_of(algorithm, norm_adv_by_std_in_grpo=normalise, gamma=0.9))
    mask = torch.arange(4)[None] < torch.tensor([row.tokens for row in rows])[:, None]
    rewards = torch.zeros(len(rows), 4)
    for line, row in enumerate(rows):
        rewards[line, row.tokens - 1] = row.reward
    expected, _ = get_adv_estimator_fn(algorithm)(
        token_level_rewards=rewards,
        response_mask=mask.float(),
        index=np.array([row.group for row in rows]),
        norm_adv_by_std_in_grpo=normalise,
        config=AlgoConfig(adv_estimator=algorithm, gamma=0.9, norm_adv_by_std_in_grpo=normalise),
        **(policy_of(rows).arguments() if ESTIMATORS[algorithm].reads_policy else {}),
    )
    assert torch.equal(got, expected.float())
    assert got.abs().sum() > 0


def test_grpo_is_the_reward_standardised_within_its_group() -> None:
    advantages = advantages_of(make_rows([[1, 0, 0.5]]), job_of("grpo"))
    assert advantages[:, 0].tolist() == pytest.approx([1.0, -1.0, 0.0], abs=1e-5)


@pytest.mark.parametrize("algorithm", GROUP_RELATIVE)
def test_a_lone_survivor_gets_zero_and_does_not_disturb_the_others(algorithm: str) -> None:
    pairs = [[1.0, 0.0], [0.0, 0.5]]
    alone = advantages_of(make_rows([*pairs, [7.0]]), job_of(algorithm))
    assert not alone[-1].any()
    assert torch.equal(alone[:-1, :3], advantages_of(make_rows(pairs), job_of(algorithm))[:, :3])


@pytest.mark.parametrize("algorithm", GROUP_RELATIVE)
def test_a_batch_of_lone_survivors_gets_zero(algorithm: str) -> None:
    assert not advantages_of(make_rows([[1.0], [0.0], [3.0]]), job_of(algorithm)).any()


@pytest.mark.parametrize("algorithm", GROUP_RELATIVE)
def test_constant_rewards_give_exactly_zero_whatever_the_rounding(algorithm: str) -> None:
    advantages = advantages_of(make_rows([[0.1, 0.1, 0.1], [0.1 + 0.2, 0.3], [1.0, 0.0]]), job_of(algorithm))
    assert not advantages[:5].any()
    assert advantages[5:].any()


def test_reinforce_plus_plus_compares_across_the_batch_and_needs_no_group() -> None:
    advantages = advantages_of(make_rows([[1.0], [0.0], [0.0]], lengths=(2,)), job_of("reinforce_plus_plus"))
    assert advantages[0, 0] > 0 > advantages[1, 0]


@pytest.mark.parametrize("algorithm", EVERY_ESTIMATOR)
def test_rewards_at_the_limit_of_float_never_give_infinite_advantages(algorithm: str) -> None:
    advantages = advantages_of(make_rows([[1e300, 0.0], [1.0, 0.0]]), job_of(algorithm))
    assert torch.isfinite(advantages).all()


REWARDS = st.sampled_from([-1.0, 0.0, 0.1, 0.25, 1.0])


@settings(deadline=None)
@given(
    groups=st.lists(st.lists(REWARDS, min_size=1, max_size=4), min_size=1, max_size=5),
    algorithm=st.sampled_from(GROUP_RELATIVE),
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple),
)
def test_advantages_are_finite_and_zero_outside_rows_and_in_mute_groups(
    groups: list[list[float]], algorithm: str, lengths: tuple[int, ...]
) -> None:
    rows = make_rows(groups, lengths)
    advantages = advantages_of(rows, job_of(algorithm))
    assert advantages.shape == (len(rows), max(row.tokens for row in rows))
    for row, line in zip(rows, advantages, strict=True):
        assert all(math.isfinite(value) for value in line.tolist())
        assert not line[row.tokens :].any()
        if len(set(groups[row.group])) == 1:
            assert not line.any()
