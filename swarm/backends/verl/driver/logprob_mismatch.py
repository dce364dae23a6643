"""The gap between the logprobs that the sampler recorded and those of the same weights in the trainer.

Place in the flow: the learner measures it in every step, before the first update. Names are verl's.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportAttributeAccessIssue=false, reportIndexIssue=false

from __future__ import annotations

import torch
from tensordict import TensorDict
from verl.protocol import DataProto
from verl.utils.debug.metrics import calculate_debug_metrics


def measure_gap(
    data: TensorDict, logprobs: torch.Tensor, entropies: torch.Tensor, weight_version: int
) -> dict[str, float]:
    """Return the gap over the trained tokens that weights of this version sampled.

    Training caused the gap of older tokens. `data` has the nested fields response_mask, rollout_log_probs and
    weight_versions; `logprobs` and `entropies` are nested the same way. The entropy covers all trained tokens.
    """
    mask_N = data["response_mask"].values().bool()
    fresh_N = mask_N & (data["weight_versions"].values() == weight_version)
    metrics = {"actor/entropy": entropies.values()[mask_N].mean().item()}
    if not fresh_N.any():
        return metrics
    own_N, recorded_N = logprobs.values()[fresh_N], data["rollout_log_probs"].values()[fresh_N]
    compared = DataProto.from_single_dict(
        {
            "responses": torch.zeros_like(own_N)[None],
            "response_mask": torch.ones_like(own_N)[None],
            "old_log_probs": own_N[None],
            "rollout_log_probs": recorded_N[None],
        }
    )
    gap_N = (own_N - recorded_N).abs()
    return {
        **metrics,
        **{name: float(value) for name, value in calculate_debug_metrics(compared).items()},
        "training/rollout_logprob_gap_max": gap_N.max().item(),
        "training/rollout_logprob_gap_mean": gap_N.mean().item(),
    }
