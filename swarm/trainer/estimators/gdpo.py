"""The estimator gdpo: the episodes of a group are compared in each of their named rewards."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import numpy as np
import torch

from swarm.trainer.advantages import AdvantageEstimate, EstimatorInputs, are_in_constant_groups
from swarm.trainer.estimators.outcome import verl_advantages


def estimate(inputs: EstimatorInputs) -> AdvantageEstimate:
    """Return the advantages from the named rewards of whole episodes.

    A named reward in which all episodes of a group are equal enters as 0, which leaves no rounding error. A group that
    is equal in all of them, or has one episode, has advantage 0.
    """
    rows, job, mask_EL, groups_E = inputs.rows, inputs.job, inputs.mask_EL, inputs.groups_E
    advantages_EL, is_constant_E = torch.zeros_like(mask_EL), torch.ones(len(rows), dtype=torch.bool)
    kept_E = np.bincount(groups_E)[groups_E] > 1
    rewards: dict[str, np.ndarray] = {}
    for key in job.gdpo_reward_keys or []:
        rewards_E = np.array([(row.rewards or {})[key] for row in rows], dtype=np.float32)
        is_equal_E = are_in_constant_groups(rewards_E, groups_E)
        rewards[key] = np.where(is_equal_E.numpy(), np.float32(0), rewards_E)[kept_E]
        is_constant_E &= is_equal_E
    if kept_E.any():
        kept = torch.from_numpy(kept_E)
        mask_KL = mask_EL[kept]
        advantages_EL[kept] = verl_advantages(
            torch.zeros_like(mask_KL),
            mask_KL,
            groups_E[kept_E],
            job,
            non_tensor_batch=rewards,
            # verl finds the end of a response by this mask; rows here are all response.
            batch={"prompts": mask_KL[:, :0], "attention_mask": mask_KL.long()},
        )
    advantages_EL[is_constant_E] = 0.0
    return AdvantageEstimate(advantages_EL)
