"""Advantages: verl's estimators of how much better than expected each episode, or each of its turns, was."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import cast

import numpy as np
import torch

from swarm.estimators import ESTIMATORS
from swarm.job import TrainJob
from swarm.trainer.token_rows import Row


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


@dataclass(frozen=True, slots=True)
class EstimatorInputs:
    """The rows of a step and their job. `mask_EL` is 1 for the tokens of a row and 0 past its end.

    `values_EL` are the values of a critic and `policy` the statistics of the tokens, for estimators that need them.
    """

    rows: Sequence[Row]
    job: TrainJob
    mask_EL: torch.Tensor
    policy: PolicyStatistics | None = None
    values_EL: torch.Tensor | None = None

    @property
    def groups_E(self) -> np.ndarray:
        """The number of each row's group. verl's vectorized estimators would merge the task ids "7" and "07"."""
        return np.asarray([row.group for row in self.rows], dtype=np.int64)

    def token_rewards(self) -> torch.Tensor:
        """Return the reward of each token [E, L], earned where it was given."""
        rewards_EL = torch.zeros_like(self.mask_EL)
        for line, row in enumerate(self.rows):
            rewards_EL[line, : row.tokens] = torch.from_numpy(row.token_rewards())
        return rewards_EL


@dataclass(frozen=True, slots=True)
class AdvantageEstimate:
    """The advantages [E, L]. `returns_EL` are what a critic is trained towards, None without a critic."""

    advantages_EL: torch.Tensor
    returns_EL: torch.Tensor | None = None


def are_in_constant_groups(rewards_E: np.ndarray, groups_E: np.ndarray) -> torch.Tensor:
    """Return for each row whether all rewards of its group are equal in float32."""
    highest_G = np.full(groups_E.max() + 1, -np.inf, dtype=np.float32)
    lowest_G = np.full_like(highest_G, np.inf)
    np.maximum.at(highest_G, groups_E, rewards_E)
    np.minimum.at(lowest_G, groups_E, rewards_E)
    return torch.from_numpy((highest_G == lowest_G)[groups_E])


def compute_advantages(rows: Sequence[Row], job: TrainJob, policy: PolicyStatistics | None = None) -> torch.Tensor:
    """Return the advantages [E, L] in float32 on the CPU, 0 past the end of a row; L is the longest row.

    Only estimators that read the policy need `policy`. A row whose advantage is not finite (rewards near the limit of
    float32) is set to 0.
    """
    return _estimate(EstimatorInputs(rows, job, _mask(rows), policy)).advantages_EL


def compute_critic_advantages(
    rows: Sequence[Row], values_EL: torch.Tensor, job: TrainJob
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the advantages over the values of a critic, and the returns that it is trained towards, both [E, L]."""
    estimated = _estimate(EstimatorInputs(rows, job, _mask(rows), values_EL=values_EL))
    assert estimated.returns_EL is not None, "an estimator with a critic returns what the critic is trained towards"
    return estimated.advantages_EL, estimated.returns_EL


def _mask(rows: Sequence[Row]) -> torch.Tensor:
    tokens_E = torch.tensor([row.tokens for row in rows])
    return (torch.arange(int(tokens_E.max()))[None] < tokens_E[:, None]).float()


def _estimate(inputs: EstimatorInputs) -> AdvantageEstimate:
    module = import_module(f"swarm.trainer.estimators.{ESTIMATORS[inputs.job.algorithm].module}")
    estimated = cast(Callable[[EstimatorInputs], AdvantageEstimate], module.estimate)(inputs)
    advantages_EL = estimated.advantages_EL * inputs.mask_EL
    advantages_EL[~torch.isfinite(advantages_EL).all(dim=1)] = 0.0
    return AdvantageEstimate(advantages_EL, estimated.returns_EL)
