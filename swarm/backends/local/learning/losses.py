"""The objective: verl's policy losses, KL kinds and aggregation modes, and its correction of older samples."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportMissingTypeStubs=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
from verl.trainer.config.algorithm import RolloutCorrectionConfig
from verl.trainer.ppo.core_algos import agg_loss, get_policy_loss_fn, kl_penalty
from verl.trainer.ppo.rollout_corr_helper import (
    compute_rollout_correction_and_rejection_mask,
    compute_rollout_correction_weights,
)
from verl.workers.config import ActorConfig, PolicyLossConfig

from swarm.backends.local.learning.microbatches import MicroBatch
from swarm.job import TrainJob
from swarm.job.checks import bypass_settings
from swarm.trainer.token_rows import Row


@dataclass(frozen=True, slots=True)
class Correction:
    """Correction of one microbatch, [R, L]: the old policy of the loss, and a constant factor on each token's loss.

    The factor is min(proximal / rollout probability, threshold). At sequence level the ratio is that of the whole
    episode.
    """

    proximal_logprobs_RL: torch.Tensor
    weights_RL: torch.Tensor


class RolloutCorrection:
    """The proximal policy's logprobs of one step, recorded as rows are scored, and the resulting weights."""

    def __init__(self, rows: Sequence[Row], job: TrainJob) -> None:
        self._level, self._threshold = job.rollout_is, job.rollout_is_threshold
        shape = len(rows), max(row.tokens for row in rows)
        self._mask_EL = torch.zeros(shape, dtype=torch.bool)
        self._rollout_EL = torch.zeros(shape)
        self._proximal_EL = torch.zeros(shape)
        self._recorded_E = torch.zeros(len(rows), dtype=torch.bool)
        for line, row in enumerate(rows):
            self._mask_EL[line, : row.tokens] = True
            self._rollout_EL[line, : row.tokens] = torch.from_numpy(row.rollout_logprobs_L)

    def record(self, numbers: Sequence[int], logprobs_RL: torch.Tensor) -> None:
        """Record the proximal policy's logprobs of the rows numbered `numbers`; keep those recorded before."""
        new = [line for line, number in enumerate(numbers) if not self._recorded_E[number]]
        chosen = [numbers[line] for line in new]
        self._proximal_EL[chosen, : logprobs_RL.shape[1]] = logprobs_RL.detach()[new].float().cpu()
        self._recorded_E[chosen] = True

    def of(self, numbers: Sequence[int], micro: MicroBatch) -> Correction:
        """Return the correction of a microbatch of recorded rows."""
        proximal_RL = self._proximal_EL[list(numbers), : micro.mask_RL.shape[1]].to(micro.mask_RL.device)
        weights_RL, _metrics = compute_rollout_correction_weights(
            log_ratio=proximal_RL - micro.rollout_logprobs_RL,
            response_mask=micro.mask_RL.float(),
            rollout_is=str(self._level),
            rollout_is_threshold=self._threshold,
        )
        return Correction(proximal_RL, weights_RL)

    def weights(self) -> torch.Tensor:
        """Return the weights [E, L] of all rows. Every row must have been recorded."""
        weights_EL, _metrics = compute_rollout_correction_weights(
            log_ratio=self._proximal_EL - self._rollout_EL,
            response_mask=self._mask_EL.float(),
            rollout_is=str(self._level),
            rollout_is_threshold=self._threshold,
        )
        return weights_EL

    def metrics(self) -> dict[str, float]:
        """Return verl's `rollout_corr/*` over the recorded rows, without values that are not finite.

        The result is empty if no row is recorded.
        """
        if not self._recorded_E.any():
            return {}
        _weights, _mask, metrics = compute_rollout_correction_and_rejection_mask(
            old_log_prob=self._proximal_EL[self._recorded_E],
            rollout_log_prob=self._rollout_EL[self._recorded_E],
            response_mask=self._mask_EL[self._recorded_E].float(),
            rollout_is=self._level,
            rollout_is_threshold=self._threshold,
        )
        return {name: float(value) for name, value in metrics.items() if math.isfinite(value)}


BATCH_STATISTIC_LOSSES = frozenset({"clip_cov", "kl_cov"})
"""Losses that compare each token with all others of the call. A minibatch must then be one complete microbatch."""

Setting = TypeVar("Setting")
PolicyLossFunction = Callable[..., tuple[torch.Tensor, dict[str, Any]]]

PENALISED_LOSSES = frozenset({"dro"})
"""Losses that bind the policy to the old one by a term without an advantage. Rows of advantage 0 then have a gradient
if their minibatch has other rows. A minibatch of such rows alone has no signal, as usual."""

ROW_MEAN_LOSSES = frozenset({"geo_mean"})
"""Losses that verl averages over the rows of the call instead of by `loss_agg_mode`."""


@dataclass(frozen=True, slots=True)
class MiniBatchSize:
    """Denominators of the losses: all rows and trained tokens of the minibatch, skipped rows included."""

    rows: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Scores:
    """Scores of a microbatch's trained tokens by the models, as [R, L].

    `reference_RL` is None without a KL term. `correction` is None without importance sampling: the policy is then
    compared with the logprobs recorded at sampling.
    """

    logprobs_RL: torch.Tensor
    entropies_RL: torch.Tensor
    reference_RL: torch.Tensor | None
    correction: Correction | None


@dataclass(frozen=True, slots=True)
class Loss:
    """Loss of a microbatch.

    `total` is differentiated. `sums` add up over microbatches; `means` are per trained token of the microbatch.
    """

    total: torch.Tensor
    sums: dict[str, float]
    means: dict[str, float]


class Objective:
    """The loss of a resolved job: policy loss + kl_loss_coef * KL(policy, reference) - entropy_coeff * entropy."""

    def __init__(self, job: TrainJob) -> None:
        self._job = job
        self._aggregation = _resolved(job.loss_agg_mode)
        self._policy_loss = cast(PolicyLossFunction, get_policy_loss_fn(job.policy_loss))
        self._config = ActorConfig(
            strategy="fsdp",
            rollout_n=job.num_repeat,
            use_dynamic_bsz=True,
            clip_ratio=job.clip_ratio,
            clip_ratio_low=_resolved(job.clip_ratio_low),
            clip_ratio_high=_resolved(job.clip_ratio_high),
            clip_ratio_c=job.clip_ratio_c,
            policy_loss=PolicyLossConfig(
                loss_mode=job.policy_loss,
                dro_beta=job.dro_beta,
                rollout_correction=RolloutCorrectionConfig(**bypass_settings(job)),
            ),
            loss_agg_mode=self._aggregation,
        )

    @property
    def needs_whole_minibatch(self) -> bool:
        """True if the minibatch must be a single microbatch."""
        return self._job.policy_loss in BATCH_STATISTIC_LOSSES or self._job.rollout_is_batch_normalize

    @property
    def trains_zero_advantage(self) -> bool:
        """True if rows of zero advantage have a gradient, which then comes from the KL or entropy term."""
        return self._job.use_kl_loss or self._job.entropy_coeff != 0

    @property
    def needs_all_rows(self) -> bool:
        """True if rows of zero advantage must go through the forward pass.

        Otherwise these rows only count in the denominators: every other policy loss is a product with the advantage.
        """
        return self.trains_zero_advantage or self.needs_whole_minibatch or self._job.policy_loss in PENALISED_LOSSES

    def __call__(self, micro: MicroBatch, scores: Scores, size: MiniBatchSize) -> Loss:
        """Return this microbatch's share of the minibatch loss."""
        self._config.global_batch_info.update(
            dp_size=1,
            batch_num_tokens=size.tokens,
            global_batch_size=size.rows,
            loss_scale_factor=self._job.loss_scale_factor or self._job.reply_tokens,
        )
        correction = scores.correction
        policy, means = self._policy_loss(
            old_log_prob=micro.rollout_logprobs_RL if correction is None else correction.proximal_logprobs_RL,
            log_prob=scores.logprobs_RL,
            advantages=micro.advantages_RL,
            response_mask=micro.mask_RL,
            loss_agg_mode=self._aggregation,
            config=self._config,
            rollout_is_weights=None if correction is None else correction.weights_RL,
        )
        if self._job.policy_loss in ROW_MEAN_LOSSES:
            policy = policy * (micro.mask_RL.shape[0] / size.rows)
        total = policy
        sums = {"actor/pg_loss": policy.item()}
        if self._job.entropy_coeff != 0:
            entropy = self._aggregate(scores.entropies_RL, micro.mask_RL)
            total = total - self._job.entropy_coeff * entropy
            sums["actor/entropy_loss"] = entropy.item()
        if scores.reference_RL is not None:
            kl_RL = kl_penalty(scores.logprobs_RL, scores.reference_RL, self._job.kl_loss_type)  # pyright: ignore[reportArgumentType]
            kl = self._aggregate(kl_RL, micro.mask_RL)
            total = total + self._job.kl_loss_coef * kl
            sums["actor/kl_loss"] = kl.item()
        entropy_sum = (scores.entropies_RL.detach() * micro.mask_RL).sum()
        means = {name: value for name, value in means.items() if math.isfinite(value)}
        means = {**means, "actor/entropy": (entropy_sum / micro.mask_RL.sum()).item()}
        return Loss(total, sums, means)

    def _aggregate(self, loss_RL: torch.Tensor, mask_RL: torch.Tensor) -> torch.Tensor:
        return agg_loss(loss_RL, mask_RL, self._aggregation, **self._config.global_batch_info)


def _resolved(value: Setting | None) -> Setting:
    assert value is not None, "a resolved job has every setting"
    return value
