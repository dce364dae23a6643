"""The policy's objective in verl's workers: verl's registered losses, KL kinds and aggregation modes."""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from tensordict import TensorDict
from verl.trainer.ppo.core_algos import agg_loss, get_policy_loss_fn, kl_penalty
from verl.utils.metric import AggregationType, Metric
from verl.workers.config import ActorConfig
from verl.workers.utils.padding import no_padding_2_padding

ROW_WEIGHT = "row_weight"
"""Field of a row: its share of its episode, in the modes that average over sequences; 1 elsewhere."""

SUPERVISED = "supervised"
"""Mark of a minibatch of demonstrations."""

OWN_WEIGHT_LOSSES = frozenset({"bypass_mode"})
"""Losses that ignore given weights and compute their own. They are proportional to the advantage, so the advantage
carries our weights."""

ROW_MEAN_LOSSES = frozenset({"geo_mean"})
"""Losses that verl averages over the rows of the call instead of by `loss_agg_mode`."""


def policy_loss(
    config: ActorConfig, model_output: Mapping[str, Any], data: TensorDict, dp_group: object = None
) -> tuple[torch.Tensor, dict[str, Any]]:
    """Return policy loss + kl_loss_coef * KL(policy, reference) - entropy_coeff * entropy, and its metrics.

    Demonstrations have the supervised loss instead, the mean of -log π over the trained tokens.

    Matrices are [R, L], rows of the microbatch by their longest response. verl averages gradients over the `dp_size`
    ranks, so each share is multiplied by their number.
    """
    logprobs_RL = no_padding_2_padding(cast(torch.Tensor, model_output["log_probs"]), data)
    if SUPERVISED in data:
        return _supervised_loss(logprobs_RL, data)
    entropies = model_output.get("entropy")
    entropies_RL = None if entropies is None else no_padding_2_padding(cast(torch.Tensor, entropies), data)
    dp_size, rows = int(data["dp_size"]), int(data["global_batch_size"])
    config.global_batch_info.update(
        dp_size=dp_size,
        batch_num_tokens=data["batch_num_tokens"],
        global_batch_size=rows,
        loss_scale_factor=config.loss_scale_factor,
    )
    optional = [name for name in ("rollout_is_weights", "ref_log_prob") if name in data]
    fields = data.select("response_mask", "old_log_probs", "advantages", ROW_WEIGHT, *optional).to_padded_tensor()
    mask_RL = fields["response_mask"].to(torch.bool)
    weights_RL = fields[ROW_WEIGHT][:, None].expand_as(logprobs_RL)
    if "rollout_is_weights" in optional:
        weights_RL = weights_RL * fields["rollout_is_weights"]
    loss_mode = str(config.policy_loss.get("loss_mode", "vanilla"))
    old_RL, advantages_RL, seen_RL = fields["old_log_probs"], fields["advantages"], mask_RL
    if loss_mode in OWN_WEIGHT_LOSSES:
        advantages_RL = advantages_RL * weights_RL
        if not mask_RL.any():
            # Such a loss refuses a microbatch of padding rows alone, so one token with advantage 0 takes part.
            old_RL, advantages_RL = logprobs_RL.detach(), torch.zeros_like(logprobs_RL)
            seen_RL = mask_RL.clone()
            seen_RL[0, 0] = True
    total, measured = cast("Callable[..., Any]", get_policy_loss_fn(loss_mode))(
        old_log_prob=old_RL,
        log_prob=logprobs_RL,
        advantages=advantages_RL,
        response_mask=seen_RL,
        loss_agg_mode=config.loss_agg_mode,
        config=config,
        rollout_is_weights=weights_RL,
    )
    if loss_mode in ROW_MEAN_LOSSES:
        total = total * (len(mask_RL) * dp_size / rows)
    metrics: dict[str, Any] = dict(Metric.from_dict(measured, AggregationType.MEAN))
    metrics["actor/pg_loss"] = Metric(AggregationType.SUM, total)
    extra, terms = _regularizers(config, logprobs_RL, entropies_RL, fields, mask_RL)
    return total + extra, {**metrics, **{name: Metric(AggregationType.SUM, value) for name, value in terms.items()}}


def _supervised_loss(logprobs_RL: torch.Tensor, data: TensorDict) -> tuple[torch.Tensor, dict[str, Any]]:
    mask_RL = data.select("response_mask").to_padded_tensor()["response_mask"].to(torch.bool)
    total = agg_loss(
        -logprobs_RL,
        mask_RL,
        "token-mean",
        dp_size=int(data["dp_size"]),
        batch_num_tokens=data["batch_num_tokens"],
    )
    return total, {"sft/loss": Metric(AggregationType.SUM, total)}


def _regularizers(
    config: ActorConfig,
    logprobs_RL: torch.Tensor,
    entropies_RL: torch.Tensor | None,
    fields: TensorDict,
    mask_RL: torch.Tensor,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    weights_R1 = fields[ROW_WEIGHT][:, None]
    total, terms = logprobs_RL.new_zeros(()), dict[str, torch.Tensor]()
    if entropies_RL is not None and config.entropy_coeff != 0:
        entropy = agg_loss(entropies_RL * weights_R1, mask_RL, config.loss_agg_mode, **config.global_batch_info)
        total = total - config.entropy_coeff * entropy
        terms["actor/entropy_loss"] = entropy
    if config.use_kl_loss:
        kl_RL = kl_penalty(logprobs_RL, fields["ref_log_prob"], config.kl_loss_type)  # pyright: ignore[reportArgumentType]
        kl = agg_loss(kl_RL * weights_R1, mask_RL, config.loss_agg_mode, **config.global_batch_info)
        total = total + config.kl_loss_coef * kl
        terms["actor/kl_loss"] = kl
    return total, terms
