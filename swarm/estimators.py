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
    """The needs of an advantage estimator.

    `module` computes it, in swarm/trainer/estimators. It `has_groups` if the episodes of a task are compared with each
    other: then an episode without others has advantage 0. If it `has_critic`, a second model estimates the value of
    each token. If it `has_greedy`, each group has one greedy episode, the baseline of the others. If it `reads_policy`,
    it needs the probabilities of all tokens.

    `settings` are the fields of a job that it alone reads. `required` says of those that it cannot do without what they
    are. `unserved` are the engines that do not support it, each with the reason and the way out.
    """

    module: str = "outcome"
    has_groups: bool = True
    has_critic: bool = False
    has_greedy: bool = False
    reads_policy: bool = False
    settings: tuple[str, ...] = ()
    required: Mapping[str, str] = field(default_factory=dict[str, str])
    unserved: Mapping[Engine, str] = field(default_factory=dict[Engine, str])


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
        "reinforce_plus_plus": Estimator(has_groups=False),
        "reinforce_plus_plus_baseline": Estimator(),
        "rloo": Estimator(),
        "rloo_vectorized": Estimator(),
        "opo": Estimator(),
        "gpg": Estimator(),
        "gae": Estimator("gae", has_groups=False, has_critic=True, settings=_CRITIC_SETTINGS),
        "optimal_token_baseline": Estimator(reads_policy=True, unserved=_NO_SQUARES),
        "tir_optimal_token_baseline": Estimator(reads_policy=True, unserved=_NO_SQUARES),
        "gdpo": Estimator("gdpo", settings=("gdpo_reward_keys", "gdpo_reward_weights"), required=_REWARD_KEYS),
        "remax": Estimator("remax", has_groups=False, has_greedy=True),
    }
)

if TYPE_CHECKING:
    AdvantageEstimator = str
else:
    AdvantageEstimator = Literal[tuple(ESTIMATORS)]
"""The type of a job's field `algorithm`. Its values are the names in the table, which type checkers cannot read."""
