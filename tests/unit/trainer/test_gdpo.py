"""gdpo: verl's numbers from several named rewards, each compared within its group."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import MakeBatch, MakeModel

from swarm.errors import JobInvalid
from swarm.job import TrainJob, build_job
from swarm.trainer.token_rows import Row, ScoredSample
from swarm.types import Group, TrainBatch


@pytest.fixture(scope="module", autouse=True)
def late_imports() -> None:
    global torch, AlgoConfig, get_adv_estimator_fn, Learner, compute_advantages
    import torch
    from verl.trainer.config import AlgoConfig
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn

    from swarm.backends.local.learning.learner import Learner
    from swarm.trainer.advantages import compute_advantages


KEYS = ["right", "short"]


def make_rows(groups: list[list[tuple[float, float]]], lengths: tuple[int, ...] = (3, 1, 4, 2)) -> list[Row]:
    flat = [(number, each) for number, group in enumerate(groups) for each in group]
    rows: list[Row] = []
    for place, (group, (right, short)) in enumerate(flat):
        tokens = lengths[place % len(lengths)]
        ids = np.arange(tokens + 1)
        rows.append(
            Row(
                episode_id=f"e{place}",
                group=group,
                reward=0.0,
                turn_rewards=None,
                samples=(ScoredSample(ids, ids[1:], ids[:-1], np.ones(tokens, dtype=np.float32)),),
                rollout_logprobs_L=np.full(tokens, -1.0, dtype=np.float32),
                turn_indices_L=np.zeros(tokens, dtype=np.int64),
                weight_versions_L=np.zeros(tokens, dtype=np.int64),
                rewards={"right": right, "short": short, "unread": float(place)},
            )
        )
    return rows


def job_of(**more: Any) -> TrainJob:
    return TrainJob.model_validate({"algorithm": "gdpo", "gdpo_reward_keys": KEYS, **more})


@pytest.mark.parametrize("weights", [None, [2.0, -0.5]])
@pytest.mark.parametrize("normalise", [True, False])
def test_advantages_are_those_of_verls_function_on_the_same_batch(normalise: bool, weights: list[float] | None) -> None:
    rows = make_rows([[(1, 0.2), (0, 0.4), (1, 0)], [(0, 1), (1, 0)]])
    got = compute_advantages(rows, job_of(norm_adv_by_std_in_grpo=normalise, gdpo_reward_weights=weights))
    mask = (torch.arange(4)[None] < torch.tensor([row.tokens for row in rows])[:, None]).float()
    expected, _ = get_adv_estimator_fn("gdpo")(
        token_level_rewards=torch.zeros(5, 4),
        response_mask=mask,
        index=np.array([row.group for row in rows]),
        norm_adv_by_std_in_grpo=normalise,
        config=AlgoConfig(adv_estimator="gdpo", gdpo_reward_keys=KEYS, gdpo_reward_weights=weights),
        non_tensor_batch={key: np.array([(row.rewards or {})[key] for row in rows]) for key in KEYS},
        batch={"prompts": torch.zeros(5, 2), "attention_mask": torch.cat([torch.ones(5, 2), mask], 1).long()},
    )
    assert torch.equal(got, expected.float())
    assert got.abs().sum() > 0


PAIRS = st.tuples(*[st.sampled_from([-1.0, 0.0, 0.1, 0.3, 0.1 + 0.2])] * 2)


@settings(deadline=None)
@given(groups=st.lists(st.lists(PAIRS, min_size=1, max_size=4), min_size=1, max_size=4))
def test_only_groups_that_differ_in_a_named_reward_teach(groups: list[list[tuple[float, float]]]) -> None:
    rows = make_rows(groups)
    advantages = compute_advantages(rows, job_of())
    assert torch.isfinite(advantages).all()
    for row, line in zip(rows, advantages, strict=True):
        assert not line[row.tokens :].any()
        if len({(np.float32(right), np.float32(short)) for right, short in groups[row.group]}) == 1:
            assert not line.any()


def test_a_reward_in_which_a_group_is_equal_says_nothing_whatever_the_rounding() -> None:
    varied = [[(1.0, 0.0), (0.0, 0.0)], [(0.0, 0.0), (1.0, 0.0)]]
    raised = [[(right, 0.1) for right, _ in group] for group in varied]
    assert torch.equal(compute_advantages(make_rows(varied), job_of()), compute_advantages(make_rows(raised), job_of()))


def with_rewards(batch: TrainBatch) -> TrainBatch:
    groups = tuple(
        Group(
            group.task_id,
            tuple(
                replace(each, reward=0.0, rewards={"right": each.reward, "short": 0.1 * place})
                for place, each in enumerate(group.episodes)
            ),
        )
        for group in batch.groups
    )
    return replace(batch, groups=groups)


def test_a_step_learns_from_named_rewards_and_reports_them(make_model: MakeModel, make_batch: MakeBatch) -> None:
    report = Learner(make_model(), job_of()).step(with_rewards(make_batch(((1, 0), (0, 1)))))
    assert report.metrics["actor/updates"] == 1
    assert report.metrics["gdpo/right/mean"] == 0.5
    assert report.metrics["gdpo/short/std"] == pytest.approx(0.05)
    assert report.metrics["critic/score/mean"] == 0
    assert len({round(value, 6) for value in report.advantages.values()}) > 1


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"algorithm": "gdpo"}, "needs gdpo_reward_keys"),
        ({"algorithm": "gdpo", "gdpo_reward_keys": []}, "gdpo_reward_keys"),
        ({"algorithm": "gdpo", "gdpo_reward_keys": ["a", "a"]}, "names a twice"),
        ({"algorithm": "gdpo", "gdpo_reward_keys": ["a"], "gdpo_reward_weights": [1, 2]}, "2 weights for 1 rewards"),
        ({"gdpo_reward_keys": ["a"]}, "read by algorithm gdpo alone, not by grpo"),
        ({"gdpo_reward_weights": [1]}, "read by algorithm gdpo alone, not by grpo"),
    ],
)
def test_what_it_lacks_or_does_not_read_is_refused_by_name(given: dict[str, Any], says: str) -> None:
    with pytest.raises(JobInvalid) as refused:
        build_job(given)
    assert says in refused.value.message
