"""Advantages: verl's numbers for groups that can be compared, zero for those that cannot."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_rows import BY_OUTCOME, make_row, policy_of, verl_advantages

from swarm.job import TrainJob
from swarm.trainer.token_rows import Row


@pytest.fixture(scope="module", autouse=True)
def late_imports() -> None:
    global torch, compute_advantages
    import torch

    from swarm.trainer.advantages import compute_advantages


GROUP_RELATIVE = [name for name in BY_OUTCOME if name != "reinforce_plus_plus"]


def make_rows(groups: list[list[float]], lengths: tuple[int, ...] = (3, 1, 4, 2)) -> list[Row]:
    flat = [(number, reward) for number, rewards in enumerate(groups) for reward in rewards]
    return [make_row(group, reward, [lengths[place % len(lengths)]]) for place, (group, reward) in enumerate(flat)]


def job_of(algorithm: str, **settings: object) -> TrainJob:
    return TrainJob.model_validate({"algorithm": algorithm, **settings})


def advantages_of(rows: list[Row], job: TrainJob) -> torch.Tensor:
    return compute_advantages(rows, job, policy_of(rows))


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("algorithm", BY_OUTCOME)
def test_comparable_groups_get_exactly_the_advantages_of_verl(algorithm: str, normalise: bool) -> None:
    rows = make_rows([[1, 0, 0.5], [0, 1], [0.25, 0.75, 0, 1]])
    job = job_of(algorithm, norm_adv_by_std_in_grpo=normalise, gamma=0.9)
    got = advantages_of(rows, job)
    assert torch.equal(got, verl_advantages(rows, [row.reward for row in rows], job))
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


@pytest.mark.parametrize("algorithm", BY_OUTCOME)
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
