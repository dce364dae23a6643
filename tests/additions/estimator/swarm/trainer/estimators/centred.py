"""The estimator centred: each token's reward minus the mean reward of its group's episodes."""

from __future__ import annotations

import torch

from swarm.trainer.advantages import AdvantageEstimate, EstimatorInputs


def estimate(inputs: EstimatorInputs) -> AdvantageEstimate:
    """Return the advantages: every token of an episode has the episode's."""
    rewards_E = torch.tensor([row.reward for row in inputs.rows])
    groups_E = torch.from_numpy(inputs.groups_E)
    means_E = torch.stack([rewards_E[groups_E == group].mean() for group in groups_E])
    return AdvantageEstimate((rewards_E - means_E)[:, None] * inputs.mask_EL)
