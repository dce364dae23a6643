"""remax: verl's numbers from what the greedy episode of each group earned, which is itself not trained."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_rows import make_row
from tiny_models import MakeBatch, MakeModel

from swarm.job import TrainJob
from swarm.trainer.token_rows import build_rows
from swarm.types import Group, TrainBatch


@pytest.fixture(scope="module", autouse=True)
def late_imports() -> None:
    global torch, AlgoConfig, get_adv_estimator_fn, Learner, compute_advantages
    import torch
    from verl.trainer.config import AlgoConfig
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn

    from swarm.backends.local.learning.learner import Learner
    from swarm.trainer.advantages import compute_advantages


JOB = TrainJob(algorithm="remax")


REWARDS = st.sampled_from([-1.0, 0.0, 0.1, 0.25, 1.0])
TURNS = st.none() | st.tuples(REWARDS, REWARDS)


@settings(deadline=None)
@given(groups=st.lists(st.tuples(REWARDS, st.lists(st.tuples(REWARDS, TURNS), min_size=1, max_size=4)), min_size=1))
def test_advantages_are_those_of_verls_function_on_the_same_batch(
    groups: list[tuple[float, list[tuple[float, tuple[float, float] | None]]]],
) -> None:
    rows = [
        make_row(number, reward, [2, 2], turns, baseline=greedy)
        for number, (greedy, members) in enumerate(groups)
        for reward, turns in members
    ]
    earned = torch.zeros(len(rows), 4)
    for line, row in enumerate(rows):
        first, second = row.turn_rewards or (0.0, 0.0)
        earned[line, 1], earned[line, 3] = first, second + row.reward
    expected, _ = get_adv_estimator_fn("remax")(
        token_level_rewards=earned,
        reward_baselines=torch.tensor([row.baseline for row in rows]),
        response_mask=torch.ones(len(rows), 4),
        config=AlgoConfig(adv_estimator="remax"),
    )
    assert torch.allclose(compute_advantages(rows, JOB), expected, atol=1e-5)


RESULTS = [(0, 0.1, 0.1), (0, 0.3, 0.1), (1, 1.0, 0.0)]


def test_whoever_earns_just_what_the_greedy_episode_did_has_no_advantage() -> None:
    rows = [make_row(group, reward, [2, 2], baseline=greedy) for group, reward, greedy in RESULTS]
    sums = compute_advantages(rows, JOB).sum(dim=1)
    assert sums[0] == 0 and sums[1] == pytest.approx(0.8) and sums[2] == 4


def with_greedy(batch: TrainBatch) -> TrainBatch:
    """The same batch, the last episode of each group greedy."""
    groups = tuple(
        Group(group.task_id, group.episodes[:-1], replace(group.episodes[-1], is_greedy=True)) for group in batch.groups
    )
    return replace(batch, groups=groups)


def test_the_greedy_episode_of_a_group_is_the_baseline_of_its_rows_with_all_it_earned(make_batch: MakeBatch) -> None:
    batch = with_greedy(make_batch(((1, 0, 0.5), (0, 0.25))))
    first = batch.groups[0]
    assert first.greedy is not None
    rewarded = replace(first, greedy=replace(first.greedy, turn_rewards=(0.25, -1.0)))
    rows = build_rows(replace(batch, groups=(rewarded, *batch.groups[1:])))
    assert [(row.episode_id, row.baseline) for row in rows] == [("e0-0", -0.25), ("e0-1", -0.25), ("e1-0", 0.25)]
    assert [episode.episode_id for episode in batch.members] == ["e0-0", "e0-1", "e0-2", "e1-0", "e1-1"]


def test_a_step_trains_all_but_the_greedy_episodes_and_reports_their_rewards(
    make_model: MakeModel, make_batch: MakeBatch
) -> None:
    job = TrainJob(algorithm="remax", num_repeat=3, batch_size=2)
    report = Learner(make_model(), job).step(with_greedy(make_batch(((1, 0, 0.5), (0, 0, 0.25)))))
    assert report.metrics["actor/updates"] == 1
    assert report.metrics["rollout/episodes"] == 4
    assert report.metrics["critic/greedy_score/mean"] == 0.375
    assert report.advantages == pytest.approx({"e0-0": 0.5, "e0-1": -0.5, "e1-0": -0.25, "e1-1": -0.25})


def test_the_tokens_of_the_greedy_episode_do_not_change_a_step(make_model: MakeModel, make_batch: MakeBatch) -> None:
    batch = with_greedy(make_batch(((1, 0, 0.5),)))
    other = with_greedy(make_batch(((1, 0, 0.5),), seed=1))
    swapped = replace(batch, groups=(replace(batch.groups[0], greedy=other.groups[0].greedy),))
    job = TrainJob(algorithm="remax", num_repeat=3, batch_size=1, loss_agg_mode="token-mean")
    weights: list[torch.Tensor] = []
    for each in (batch, swapped):
        model = make_model()
        Learner(model, job).step(each)
        weights.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
    assert torch.equal(*weights)
