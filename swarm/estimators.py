"""The table of advantage estimators, by verl's names: what each needs of a job and of the service."""

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
    unserved: Mapping[Engine, str] = field(default_factory=dict[Engine, str])
    """Engines that do not support it, each with the reason and the way out."""


_NO_SQUARES: Final[Mapping[Engine, str]] = MappingProxyType(
    {
        "verl": "it needs the squared probabilities of all tokens, which verl's v1 trainer does not ask its actor for:"
        " set engine to local, or algorithm to rloo or opo"
    }
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
        "gae": Estimator("gae", compares_group=False, has_critic=True),
        "optimal_token_baseline": Estimator(reads_policy=True, unserved=_NO_SQUARES),
        "tir_optimal_token_baseline": Estimator(reads_policy=True, unserved=_NO_SQUARES),
        "gdpo": Estimator("gdpo"),
        "remax": Estimator("remax", compares_group=False, has_greedy=True),
    }
)

if TYPE_CHECKING:
    AdvantageEstimator = str
else:
    AdvantageEstimator = Literal[tuple(ESTIMATORS)]
"""The type of a job's field `algorithm`. Its values are the names in the table, which type checkers cannot read."""
