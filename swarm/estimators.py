"""The table of advantage estimators: one line each, with what an estimator needs of a job and of the service.

Place in the flow: a job checks itself by the table, the batch and the trainers ask it what to prepare, and the docs
show it. All names are verl's. The maths of `module` lies in swarm/trainer/estimators. This module knows nothing of
tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal

Engine = Literal["local", "verl"]


@dataclass(frozen=True, slots=True)
class Estimator:
    """The needs of an advantage estimator."""

    module: str = "outcome"
    """Module of swarm/trainer/estimators that computes it."""
    compares_group: bool = True
    """True if an episode is compared with the others of its group. Without others, its advantage is 0."""
    has_critic: bool = False
    """True if a second model, the critic, estimates the value of each token."""
    has_greedy: bool = False
    """True if each group has one greedy episode, which is the baseline of the others."""
    reads_policy: bool = False
    """True if it needs the policy's probabilities of all tokens."""
    settings: tuple[str, ...] = ()
    """Fields of a job that it alone reads."""
    required: Mapping[str, str] = field(default_factory=dict[str, str])
    """Those of `settings` that a job must have, each with its meaning."""
    unserved: Mapping[Engine, str] = field(default_factory=dict[Engine, str])
    """Engines that do not support it, each with the reason and the way out."""


_NO_SQUARES: Final[Mapping[Engine, str]] = MappingProxyType(
    {
        "verl": "it needs the squared probabilities of all tokens, which verl's v1 trainer does not ask its actor for:"
        " set engine to local, or algorithm to rloo or opo"
    }
)
_CRITIC_SETTINGS: Final = ("lam", "critic_lr", "critic_warmup", "cliprange_value")
_REWARD_KEYS: Final[Mapping[str, str]] = MappingProxyType(
    {"gdpo_reward_keys": "the names of the rewards that it learns from"}
)

ESTIMATORS: Final[Mapping[str, Estimator]] = MappingProxyType(
    {
        "grpo": Estimator(),
        "grpo_vectorized": Estimator(),
        "grpo_passk": Estimator(),
        "reinforce_plus_plus": Estimator(compares_group=False),
        "reinforce_plus_plus_baseline": Estimator(),
        "rloo": Estimator(),
        "rloo_vectorized": Estimator(),
        "opo": Estimator(),
        "gpg": Estimator(),
        "gae": Estimator("gae", compares_group=False, has_critic=True, settings=_CRITIC_SETTINGS),
        "optimal_token_baseline": Estimator(reads_policy=True, unserved=_NO_SQUARES),
        "tir_optimal_token_baseline": Estimator(reads_policy=True, unserved=_NO_SQUARES),
        "gdpo": Estimator("gdpo", settings=("gdpo_reward_keys", "gdpo_reward_weights"), required=_REWARD_KEYS),
        "remax": Estimator("remax", compares_group=False, has_greedy=True),
    }
)

if TYPE_CHECKING:
    AdvantageEstimator = str
else:
    AdvantageEstimator = Literal[tuple(ESTIMATORS)]
"""The type of a job's field `algorithm`. Its values are the names in the table, which type checkers cannot read."""
