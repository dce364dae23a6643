"""Advantages: verl's estimators of how much better than expected each episode, or each of its turns, was.

Place in the flow: computed once per step over the whole batch, before minibatches are drawn. This module knows nothing
of models, tokens or optimizers.

One difference from verl: a group that cannot tell its episodes apart teaches nothing. verl's estimators give a lone
survivor its raw reward (grpo, rloo, opo, gpg, reinforce_plus_plus_baseline) or refuse it (grpo_passk). Rounding can
also give all members of a constant group the same small value. Here a group of one is left out of the estimator and
gets advantage 0. A group whose rewards are all equal (in float32, as verl computes) takes part in the estimator, and
its advantages are then set to 0. The one exception is reinforce_plus_plus, which has no groups: its baseline is the
whole batch.

gdpo compares the episodes of a group in each of their named rewards. A named reward in which all episodes are equal
enters as 0, which means the same and leaves no rounding error. A group that is equal in all of them is constant.

remax compares each episode with the greedy episode of its group. A lone survivor and equal rewards therefore still
teach something. A row has advantage 0 if it earned exactly what the greedy episode earned.

Turn rewards are unknown to verl. They make one problem of this kind out of every turn index: the estimator sees the
return of each episode from that turn on, and its result counts for the tokens of that turn. remax and gae take rewards
token by token, so they get each reward where it was earned.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportMissingTypeStubs=false

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo.core_algos import (
    compute_gae_advantage_return,
    compute_remax_outcome_advantage,
    get_adv_estimator_fn,
)

from swarm.job import TrainJob
from swarm.trainer.token_rows import Row

GROUP_FREE = frozenset({"reinforce_plus_plus"})

POLICY_ESTIMATORS = frozenset({"optimal_token_baseline", "tir_optimal_token_baseline"})
"""Estimators whose baseline depends on the policy's probabilities of each token. For rows of sampled tokens only, as
here, the two are the same."""


@dataclass(frozen=True, slots=True)
class PolicyStatistics:
    """Statistics of each trained token under the policy at the start of a step: matrices [E, L] on the CPU.

    They hold the token's logprob, and the sum of the squared probabilities of all tokens that could have been sampled
    in its place. `weights_EL` are the importance sampling weights, or None without importance sampling.
    """

    logprobs_EL: torch.Tensor
    squared_EL: torch.Tensor
    weights_EL: torch.Tensor | None = None

    def arguments(self) -> dict[str, torch.Tensor]:
        """Return the statistics under the names of the arguments of verl's estimators.

        1 - 2π + Σπ² is (1 - π)² plus the squares of all other probabilities, so only rounding can make it negative. It
        is clipped because a sum close to 0 in the denominator of a baseline would enlarge that error.
        """
        least_EL = 2 * self.logprobs_EL.exp() - 1
        found = {"old_log_probs": self.logprobs_EL, "sum_pi_squared": torch.maximum(self.squared_EL, least_EL)}
        return found if self.weights_EL is None else {**found, "rollout_is_weights": self.weights_EL}


def compute_advantages(rows: Sequence[Row], job: TrainJob, policy: PolicyStatistics | None = None) -> torch.Tensor:
    """Return the advantages [E, L] in float32 on the CPU, 0 past the end of a row; L is the longest row.

    A token of turn t gets the advantage of its episode by the returns of turn t (`Row.returns`). An episode that ended
    before turn t takes part with its reward. Only POLICY_ESTIMATORS read `policy`, and they need it. A row whose
    advantage is not finite (rewards near the limit of float32) is set to 0.
    """
    width = max(row.tokens for row in rows)
    tokens_E = torch.tensor([row.tokens for row in rows])
    mask_EL = (torch.arange(width)[None] < tokens_E[:, None]).float()
    groups_E = np.asarray([row.group for row in rows], dtype=np.int64)
    statistics = dict[str, torch.Tensor]()
    if job.algorithm in POLICY_ESTIMATORS:
        assert policy is not None, "the estimator needs what the policy says of each token"
        statistics = policy.arguments()
    if job.has_greedy:
        return _over_greedy(rows, mask_EL)
    if job.gdpo_reward_keys is not None:
        advantages_EL = _by_rewards(rows, job.gdpo_reward_keys, mask_EL, groups_E, job)
        advantages_EL[~torch.isfinite(advantages_EL).all(dim=1)] = 0.0
        return advantages_EL
    returns_DE, kind_T = _distinct_returns(rows)
    kind_EL = torch.full(mask_EL.shape, -1)
    for line, row in enumerate(rows):
        kind_EL[line, : row.tokens] = kind_T[torch.from_numpy(row.turn_indices_L)]
    advantages_EL = torch.zeros_like(mask_EL)
    for kind, returns_E in enumerate(returns_DE):
        concerned_EL = kind_EL == kind
        advantages_EL[concerned_EL] = _by_outcome(returns_E, mask_EL, groups_E, job, statistics)[concerned_EL]
    advantages_EL[~torch.isfinite(advantages_EL).all(dim=1)] = 0.0
    return advantages_EL


def compute_gae_advantages(
    rows: Sequence[Row], values_EL: torch.Tensor, job: TrainJob
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the advantages of gae, and the returns that a critic is trained towards, both [E, L].

    The reward of a turn is earned at its last trained token, the reward of the episode at the last token of all. gae
    has no groups: an episode is compared with the expectation of the critic. A row whose advantage is not finite is set
    to 0.
    """
    mask_EL = torch.zeros_like(values_EL)
    for line, row in enumerate(rows):
        mask_EL[line, : row.tokens] = 1.0
    rewards_EL = _token_rewards(rows, mask_EL)
    advantages_EL, returns_EL = compute_gae_advantage_return(
        token_level_rewards=rewards_EL,
        values=values_EL,
        response_mask=mask_EL,
        gamma=torch.tensor(job.gamma),
        lam=torch.tensor(job.lam),
    )
    advantages_EL = advantages_EL * mask_EL
    advantages_EL[~torch.isfinite(advantages_EL).all(dim=1)] = 0.0
    return advantages_EL, returns_EL * mask_EL


def _over_greedy(rows: Sequence[Row], mask_EL: torch.Tensor) -> torch.Tensor:
    """Return the advantages [E, L] of remax: the return of a token minus the return of the greedy episode."""
    baselines_E = torch.tensor([math.nan if row.baseline is None else row.baseline for row in rows])
    assert not baselines_E.isnan().any(), "the estimator needs a greedy episode in each group"
    advantages_EL, _returns = compute_remax_outcome_advantage(
        token_level_rewards=_token_rewards(rows, mask_EL), reward_baselines=baselines_E, response_mask=mask_EL
    )
    advantages_EL = advantages_EL * mask_EL
    advantages_EL[~torch.isfinite(advantages_EL).all(dim=1)] = 0.0
    return advantages_EL


def _token_rewards(rows: Sequence[Row], mask_EL: torch.Tensor) -> torch.Tensor:
    rewards_EL = torch.zeros_like(mask_EL)
    for line, row in enumerate(rows):
        rewards_EL[line, : row.tokens] = torch.from_numpy(row.token_rewards())
    return rewards_EL


def _by_rewards(
    rows: Sequence[Row], keys: Sequence[str], mask_EL: torch.Tensor, groups_E: np.ndarray, job: TrainJob
) -> torch.Tensor:
    """Return the advantages [E, L] of gdpo, from the named rewards of whole episodes."""
    advantages_EL, is_constant_E = torch.zeros_like(mask_EL), torch.ones(len(rows), dtype=torch.bool)
    kept_E = np.bincount(groups_E)[groups_E] > 1
    rewards: dict[str, np.ndarray] = {}
    for key in keys:
        rewards_E = np.array([(row.rewards or {})[key] for row in rows], dtype=np.float32)
        is_equal_E = _in_constant_group(rewards_E, groups_E)
        rewards[key] = np.where(is_equal_E.numpy(), np.float32(0), rewards_E)[kept_E]
        is_constant_E &= is_equal_E
    if kept_E.any():
        kept = torch.from_numpy(kept_E)
        mask_KL = mask_EL[kept]
        found_KL, _returns = get_adv_estimator_fn(job.algorithm)(
            token_level_rewards=torch.zeros_like(mask_KL),
            response_mask=mask_KL,
            index=groups_E[kept_E],
            norm_adv_by_std_in_grpo=job.norm_adv_by_std_in_grpo,
            config=AlgoConfig(
                adv_estimator=job.algorithm,
                norm_adv_by_std_in_grpo=job.norm_adv_by_std_in_grpo,
                gdpo_reward_keys=list(keys),
                gdpo_reward_weights=None if job.gdpo_reward_weights is None else list(job.gdpo_reward_weights),
            ),
            non_tensor_batch=rewards,
            # verl finds the end of a response by this mask; rows here are all response.
            batch={"prompts": mask_KL[:, :0], "attention_mask": mask_KL.long()},
        )
        advantages_EL[kept] = found_KL.float()
    advantages_EL[is_constant_E] = 0.0
    return advantages_EL


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
    if job.algorithm in GROUP_FREE:
        return _estimate(rewards_EL, mask_EL, groups_E, job, statistics)
    advantages_EL = torch.zeros_like(mask_EL)
    kept = torch.from_numpy(np.bincount(groups_E)[groups_E] > 1)
    if kept.any():
        of_kept = {name: value_EL[kept] for name, value_EL in statistics.items()}
        advantages_EL[kept] = _estimate(rewards_EL[kept], mask_EL[kept], groups_E[kept.numpy()], job, of_kept)
    advantages_EL[_in_constant_group(returns_E.numpy(), groups_E)] = 0.0
    return advantages_EL


def _estimate(
    rewards_EL: torch.Tensor,
    mask_EL: torch.Tensor,
    groups_E: np.ndarray,
    job: TrainJob,
    statistics: Mapping[str, torch.Tensor],
) -> torch.Tensor:
    # Groups go in as integers: verl's vectorized estimators would merge the task ids "7" and "07".
    advantages_EL, _returns = get_adv_estimator_fn(job.algorithm)(
        token_level_rewards=rewards_EL,
        response_mask=mask_EL,
        index=groups_E,
        norm_adv_by_std_in_grpo=job.norm_adv_by_std_in_grpo,
        config=AlgoConfig(
            adv_estimator=job.algorithm,
            gamma=job.gamma,
            norm_adv_by_std_in_grpo=job.norm_adv_by_std_in_grpo,
        ),
        **statistics,
    )
    return advantages_EL.float()


def _in_constant_group(rewards_E: np.ndarray, groups_E: np.ndarray) -> torch.Tensor:
    highest_G = np.full(groups_E.max() + 1, -np.inf, dtype=np.float32)
    lowest_G = np.full_like(highest_G, np.inf)
    np.maximum.at(highest_G, groups_E, rewards_E)
    np.minimum.at(lowest_G, groups_E, rewards_E)
    return torch.from_numpy((highest_G == lowest_G)[groups_E])
