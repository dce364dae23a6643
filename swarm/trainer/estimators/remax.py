"""The estimator remax: each token's return minus the return of the greedy episode of its group."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportMissingTypeStubs=false

from __future__ import annotations

import math

import torch
from verl.trainer.ppo.core_algos import compute_remax_outcome_advantage

from swarm.trainer.advantages import AdvantageEstimate, EstimatorInputs


def estimate(inputs: EstimatorInputs) -> AdvantageEstimate:
    """Return the advantages of rows whose groups all have a greedy episode, which is the baseline.

    A lone survivor and equal rewards therefore still teach something. Turn rewards count where they were earned.
    """
    baselines_E = torch.tensor([math.nan if row.baseline is None else row.baseline for row in inputs.rows])
    assert not baselines_E.isnan().any(), "the estimator needs a greedy episode in each group"
    advantages_EL, _returns = compute_remax_outcome_advantage(
        token_level_rewards=inputs.token_rewards(), reward_baselines=baselines_E, response_mask=inputs.mask_EL
    )
    return AdvantageEstimate(advantages_EL)
