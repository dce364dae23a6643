"""The policy losses and aggregation modes, with what each loss needs, for tests over all of them."""

from __future__ import annotations

from typing import Any

import pytest
from _pytest.mark import ParameterSet

from swarm.job import AGGREGATION_BY_LOSS, TrainJob

EVERY_LOSS = [
    "vanilla",
    "gspo",
    "cispo",
    "dppo_tv",
    "dppo_kl",
    "sapo",
    "gpg",
    "clip_cov",
    "kl_cov",
    "geo_mean",
    "dro",
    "bypass_mode",
]
SETTINGS_OF_LOSS: dict[str, dict[str, Any]] = {
    "dro": {"dro_beta": 0.3},
    "bypass_mode": {
        "loss_type": "reinforce",
        "rollout_is": "token",
        "rollout_rs": "token_k1,seq_mean_k3",
        "rollout_rs_threshold": "0.7_1.4,0.5",
    },
}
"""What a loss needs besides its name, or does most with."""
EVERY_AGGREGATION = [
    "token-mean",
    "token-sum",
    "seq-mean-token-sum",
    "seq-mean-token-mean",
    "seq-mean-token-sum-norm",
]
EVERY_COMBINATION = [
    (policy_loss, aggregation)
    for policy_loss in EVERY_LOSS
    for aggregation in EVERY_AGGREGATION
    if AGGREGATION_BY_LOSS.get(policy_loss, aggregation) == aggregation
]
"""TrainJob refuses losses that aggregate their own way with any other aggregation."""


def is_slow(policy_loss: str, aggregation: str) -> bool:
    """Whether others show as much: the first loss is tried with each aggregation, each other loss with one."""
    own = [each for loss, each in EVERY_COMBINATION if loss == policy_loss]
    number = EVERY_LOSS.index(policy_loss)
    return number > 0 and aggregation != own[number % len(own)]


def combinations(*without: str) -> list[ParameterSet]:
    """Every combination but those of the losses `without`, as values of a parametrized test."""
    return [
        pytest.param(*pair, marks=[pytest.mark.slow] if is_slow(*pair) else [])
        for pair in EVERY_COMBINATION
        if pair[0] not in without
    ]


def job_with_loss(policy_loss: str, **settings: Any) -> TrainJob:
    """A job with that loss, and with what it needs."""
    return TrainJob.model_validate({"policy_loss": policy_loss, **SETTINGS_OF_LOSS.get(policy_loss, {}), **settings})
