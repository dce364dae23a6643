"""gdpo: verl's numbers from several named rewards, each compared within its group."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_rows import make_row, mask_of, verl_advantages
from tiny_models import MakeBatch, MakeModel

from swarm.job import TrainJob
from swarm.trainer.token_rows import Row
from swarm.types import Group, TrainBatch


@pytest.fixture(scope="module", autouse=True)
def late_imports() -> None:
    global torch, Learner, compute_advantages
    import torch

    from swarm.backends.local.learning.learner import Learner
    from swarm.trainer.advantages import compute_advantages


KEYS = ["right", "short"]


def make_rows(groups: list[list[tuple[float, float]]], lengths: tuple[int, ...] = (3, 1, 4, 2)) -> list[Row]:
    flat = [(number, each) for number, group in enumerate(groups) for each in group]
    rows: list[Row] = []
    for place, (group, (right, short)) in enumerate(flat):
        named = {"right": right, "short": short, "unread": float(place)}
        rows.append(make_row(group, 0.0, [lengths[place % len(lengths)]], rewards=named))
    return rows


def job_of(**more: Any) -> TrainJob:
    return TrainJob.model_validate({"algorithm": "gdpo", "gdpo_reward_keys": KEYS, **more})


@pytest.mark.parametrize("weights", [None, [2.0, -0.5]])
@pytest.mark.parametrize("normalise", [True, False])
def test_advantages_are_those_of_verls_function_on_the_same_batch(normalise: bool, weights: list[float] | None) -> None:
    rows = make_rows([[(1, 0.2), (0, 0.4), (1, 0)], [(0, 1), (1, 0)]])
    job, named = job_of(norm_adv_by_std_in_grpo=normalise, gdpo_reward_weights=weights), [row.rewards for row in rows]
    prompts = torch.ones(5, 2)
    expected = verl_advantages(
        rows,
        [0.0] * 5,
        job,
        non_tensor_batch={key: np.array([(rewards or {})[key] for rewards in named]) for key in KEYS},
        batch={"prompts": prompts, "attention_mask": torch.cat([prompts, mask_of(rows)], 1).long()},
    )
    assert torch.equal(compute_advantages(rows, job), expected)
    assert expected.abs().sum() > 0


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
