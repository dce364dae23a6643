"""The tree of experiments of an exploring study, and the moves by which it grows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from experiments_db import Operator
from researcher.scope import ArmPart


@dataclass(frozen=True, slots=True)
class RungScore:
    """The score of an arm whose training ended at a rung.

    `share` is the part of the full training, from 0 to 1, and `steps` the step at which it ended. `stderr` is the
    standard error by the number of episodes. `base` is the score of the same agent before training, and `seconds` the
    time of the training; both are None if unknown.
    """

    share: float
    steps: int
    score: float
    stderr: float
    base: float | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class SearchNode:
    """One arm in the tree.

    `parents` are the arms that it was derived from, by `operator`; the baseline has none. `levels` maps the factors of
    the question to the arm's levels by name; it is empty for an arm outside of such a space. `scores` are by rising
    share. `failure` says why the arm is out of the search: it crashed, was rejected, or is not what it claims to be. It
    is empty for an arm that is in. `parts` are those in which it differs from the baseline.
    """

    name: str
    parents: tuple[str, ...] = ()
    operator: Operator | None = None
    levels: Mapping[str, str] = field(default_factory=dict[str, str])
    scores: tuple[RungScore, ...] = ()
    failure: str = ""
    parts: tuple[ArmPart, ...] = ()

    @property
    def last(self) -> RungScore | None:
        """The score at the highest rung so far."""
        return self.scores[-1] if self.scores else None

    def at(self, share: float) -> RungScore | None:
        """Return the score at a rung, or None if the arm has not come there."""
        return next((score for score in self.scores if score.share == share), None)


@dataclass(frozen=True, slots=True)
class SearchTree:
    """The arms that were explored, the baseline first, in the order in which they were planned.

    `sign` is 1 if a larger score is better, else -1. `seed` makes the choices of policies and proposers repeatable.
    """

    nodes: tuple[SearchNode, ...] = ()
    sign: float = 1.0
    seed: int = 0

    @property
    def spent(self) -> float:
        """The full runs that the arms have used; a rung that goes on from an earlier one costs the difference."""
        return sum(node.last.share for node in self.nodes if node.last is not None)

    def find(self, name: str) -> SearchNode | None:
        return next((node for node in self.nodes if node.name == name), None)

    def ranked(self) -> list[SearchNode]:
        """Return the scored arms that are in, best first: a higher rung goes before a lower one."""
        scored = [(node, node.last) for node in self.nodes if node.last is not None and not node.failure]
        return [node for node, last in sorted(scored, key=lambda pair: (-pair[1].share, -self.sign * pair[1].score))]


@dataclass(frozen=True, slots=True)
class Expand:
    """The move that adds an arm, derived from `parents` by `operator`; it is trained up to the first rung."""

    parents: tuple[str, ...]
    operator: Operator


@dataclass(frozen=True, slots=True)
class Promote:
    """The move that trains an arm on to the rung at `share` of its full training."""

    arm: str
    share: float


Move = Expand | Promote
