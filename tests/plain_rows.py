"""Rows of made-up episodes, and verl's own advantages of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from swarm.estimators import ESTIMATORS
from swarm.job import TrainJob
from swarm.trainer.token_rows import Row, ScoredSample

if TYPE_CHECKING:
    import torch

    from swarm.trainer.advantages import PolicyStatistics

BY_OUTCOME = sorted(name for name, estimator in ESTIMATORS.items() if estimator.module == "outcome")


def make_row(group: int, reward: float, lengths: Sequence[int], turn_rewards: Any = None, **more: Any) -> Row:
    """An episode whose turn t has `lengths[t]` trained tokens; 0 is a turn that was aborted."""
    count = sum(lengths)
    ids = np.arange(count + 1)
    return Row(
        episode_id=f"e{group}",
        group=group,
        reward=reward,
        turn_rewards=None if turn_rewards is None else tuple(turn_rewards),
        samples=(ScoredSample(ids, ids[1:], ids[:-1], np.ones(count, dtype=np.float32)),),
        rollout_logprobs_L=np.full(count, -1.0, dtype=np.float32),
        turn_indices_L=np.repeat(np.arange(len(lengths)), lengths),
        weight_versions_L=np.zeros(count, dtype=np.int64),
        **more,
    )


def mask_of(rows: Sequence[Row]) -> torch.Tensor:
    import torch

    return torch.arange(max(row.tokens for row in rows))[None] < torch.tensor([row.tokens for row in rows])[:, None]


def policy_of(rows: Sequence[Row]) -> PolicyStatistics:
    """Made-up probabilities of every token, each another, and the squares of all."""
    import torch

    from swarm.trainer.advantages import PolicyStatistics

    cells = torch.arange(len(rows) * max(row.tokens for row in rows)).reshape(len(rows), -1)
    probabilities = 0.1 + 0.8 * (cells % 7) / 7
    return PolicyStatistics(probabilities.log(), probabilities.square() + (1 - probabilities).square() / 3)


def verl_advantages(rows: Sequence[Row], returns: Sequence[float], job: TrainJob, **more: Any) -> torch.Tensor:
    """The advantages that verl's function gives episodes with these returns, each earned at its last token."""
    import torch
    from verl.trainer.config import AlgoConfig
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn

    mask, normalise = mask_of(rows), job.norm_adv_by_std_in_grpo
    rewards = torch.zeros(mask.shape)
    rewards[torch.arange(len(rows)), mask.sum(dim=1) - 1] = torch.tensor(returns, dtype=torch.float32)
    config = AlgoConfig(
        adv_estimator=job.algorithm,
        gamma=job.gamma,
        norm_adv_by_std_in_grpo=normalise,
        gdpo_reward_keys=job.gdpo_reward_keys,
        gdpo_reward_weights=job.gdpo_reward_weights,
    )
    expected, _ = get_adv_estimator_fn(job.algorithm)(
        token_level_rewards=rewards,
        response_mask=mask.float(),
        index=np.array([row.group for row in rows]),
        norm_adv_by_std_in_grpo=normalise,
        config=config,
        **(policy_of(rows).arguments() if ESTIMATORS[job.algorithm].reads_policy else {}),
        **more,
    )
    return expected.float()
