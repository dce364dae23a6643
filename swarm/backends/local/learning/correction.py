"""Truncated importance sampling: verl's rollout correction for tokens that an older policy sampled.

Place in the flow: the learner makes one correction for each step of a job that asks for it. The proximal policy is
given by the weights at the start of the step. The updater records the logprob of each token under this policy here, and
passes the resulting weights to the loss. This module knows nothing of models, losses or optimizers.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportMissingTypeStubs=false

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from verl.trainer.ppo.rollout_corr_helper import (
    compute_rollout_correction_and_rejection_mask,
    compute_rollout_correction_weights,
)

from swarm.backends.local.learning.microbatches import MicroBatch
from swarm.job import TrainJob
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
