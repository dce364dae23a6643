"""The estimator gae: the advantages over a critic's values, and the returns that the critic is trained towards."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportMissingTypeStubs=false

from __future__ import annotations

import torch
from verl.trainer.ppo.core_algos import compute_gae_advantage_return

from swarm.trainer.advantages import AdvantageEstimate, EstimatorInputs


def estimate(inputs: EstimatorInputs) -> AdvantageEstimate:
    """Return the advantages and returns of rows with a critic's values. The job must be resolved.

    The reward of a turn is earned at its last trained token, that of the episode at the last token of all. There are no
    groups: an episode is compared with the expectation of the critic.
    """
    assert inputs.values_EL is not None, "the estimator needs the values of a critic"
    advantages_EL, returns_EL = compute_gae_advantage_return(
        token_level_rewards=inputs.token_rewards(),
        values=inputs.values_EL,
        response_mask=inputs.mask_EL,
        gamma=torch.tensor(inputs.job.gamma),
        lam=torch.tensor(inputs.job.lam),
    )
    return AdvantageEstimate(advantages_EL, returns_EL * inputs.mask_EL)
