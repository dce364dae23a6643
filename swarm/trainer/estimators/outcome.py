"""The estimators of outcomes: verl's functions of what each episode returned in all, or from each of its turns on."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportMissingTypeStubs=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo.core_algos import get_adv_estimator_fn

from swarm.estimators import ESTIMATORS
from swarm.job import TrainJob
from swarm.trainer.advantages import AdvantageEstimate, EstimatorInputs, are_in_constant_groups
from swarm.trainer.token_rows import Row


def estimate(inputs: EstimatorInputs) -> AdvantageEstimate:
    """Return the advantages of each turn's tokens, by the returns of all episodes from that turn on (`Row.returns`).

    An episode that ended before a turn takes part in it with its reward. Turn rewards are unknown to verl: each turn
    index is a problem of its own, and its result counts for the tokens of that turn.

    A group that cannot tell its episodes apart teaches nothing, unlike in verl. A group of one is left out and gets
    advantage 0: verl gives a lone survivor its raw reward, or refuses it (grpo_passk). A group whose rewards are all
    equal in float32 takes part, and its advantages are then set to 0, because rounding may leave small values. The one
    exception is reinforce_plus_plus, whose baseline is the whole batch.
    """
    rows, job, mask_EL, groups_E = inputs.rows, inputs.job, inputs.mask_EL, inputs.groups_E
    statistics = dict[str, torch.Tensor]()
    if job.reads_policy:
        assert inputs.policy is not None, "the estimator needs what the policy says of each token"
        statistics = inputs.policy.arguments()
    returns_DE, kind_T = _distinct_returns(rows)
    kind_EL = torch.full(mask_EL.shape, -1)
    for line, row in enumerate(rows):
        kind_EL[line, : row.tokens] = kind_T[torch.from_numpy(row.turn_indices_L)]
    advantages_EL = torch.zeros_like(mask_EL)
    for kind, returns_E in enumerate(returns_DE):
        concerned_EL = kind_EL == kind
        advantages_EL[concerned_EL] = _by_outcome(returns_E, mask_EL, groups_E, job, statistics)[concerned_EL]
    return AdvantageEstimate(advantages_EL)


def _distinct_returns(rows: Sequence[Row]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return every distinct set of returns [D, E] in float32, and the index of the set that turn t has.

    Without turn rewards there is one set: the rewards.
    """
    turns = 1 + max(int(row.turn_indices_L[-1]) for row in rows)
    returns_TE = torch.tensor([row.returns(turns) for row in rows], dtype=torch.float32).T
    returns_DE, kind_T = torch.unique(returns_TE, dim=0, return_inverse=True)
    return returns_DE, kind_T


def _by_outcome(
    returns_E: torch.Tensor,
    mask_EL: torch.Tensor,
    groups_E: np.ndarray,
    job: TrainJob,
    statistics: Mapping[str, torch.Tensor],
) -> torch.Tensor:
    """Return the advantages [E, L] of episodes with these returns, which are earned at their last sampled token."""
    rewards_EL = torch.zeros_like(mask_EL)
    rewards_EL[torch.arange(len(returns_E)), mask_EL.sum(dim=1).long() - 1] = returns_E
    if not ESTIMATORS[job.algorithm].compares_group:
        return verl_advantages(rewards_EL, mask_EL, groups_E, job, **statistics)
    advantages_EL = torch.zeros_like(mask_EL)
    kept = torch.from_numpy(np.bincount(groups_E)[groups_E] > 1)
    if kept.any():
        of_kept = {name: value_EL[kept] for name, value_EL in statistics.items()}
        advantages_EL[kept] = verl_advantages(rewards_EL[kept], mask_EL[kept], groups_E[kept.numpy()], job, **of_kept)
    advantages_EL[are_in_constant_groups(returns_E.numpy(), groups_E)] = 0.0
    return advantages_EL


def verl_advantages(
    rewards_EL: torch.Tensor, mask_EL: torch.Tensor, groups_E: np.ndarray, job: TrainJob, **more: Any
) -> torch.Tensor:
    """Return the advantages of verl's function of the job's algorithm, in float32. `more` are arguments of its own."""
    keys, weights = job.gdpo_reward_keys, job.gdpo_reward_weights
    advantages_EL, _returns = get_adv_estimator_fn(job.algorithm)(
        token_level_rewards=rewards_EL,
        response_mask=mask_EL,
        index=groups_E,
        norm_adv_by_std_in_grpo=job.norm_adv_by_std_in_grpo,
        config=AlgoConfig(
            adv_estimator=job.algorithm,
            gamma=job.gamma,
            norm_adv_by_std_in_grpo=job.norm_adv_by_std_in_grpo,
            gdpo_reward_keys=None if keys is None else list(keys),
            gdpo_reward_weights=None if weights is None else list(weights),
        ),
        **more,
    )
    return advantages_EL.float()
