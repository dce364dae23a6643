"""Advantages: verl's estimators of how much better than expected each episode, or each of its turns, was.

Place in the flow: computed once per step over the whole batch, before minibatches are drawn. The estimator of the job
does the maths, a module in swarm/trainer/estimators. This module knows nothing of models, tokens or optimizers.
"""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import cast

import torch

from swarm.estimators import ESTIMATORS
from swarm.job import TrainJob
from swarm.trainer.estimators.inputs import AdvantageEstimate, EstimatorInputs, PolicyStatistics
from swarm.trainer.token_rows import Row


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
