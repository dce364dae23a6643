"""The protocol of a policy, and the parts that all policies share: one round of moves, and the choice of promotions.

Place in the flow: the explore node asks the charter's policy for the next moves, and the planner carries them out. The
policies beside this module build a `Round`. This module knows nothing of settings, programs or runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

from experiments_db import Operator
from researcher.charter import PolicyName
from researcher.tree import Expand, Move, Promote, SearchNode, SearchTree

MAX_DEBUGS = 3
"""The number of attempts, one after the other, to mend an arm that failed."""
MAX_ARMS_PER_PAID = 2
"""The arms of a tree per first rung that the allowance pays, so that arms that fail before they cost anything end."""
TOLERANCE = 1e-9
"""The rounding error of sums of shares."""


class SearchPolicy(Protocol):
    """The rule by which exploration goes on."""

    @property
    def name(self) -> PolicyName: ...

    def choose(self, tree: SearchTree, rungs: tuple[float, ...], left: float, width: int) -> tuple[Move, ...]:
        """Return the moves of the next round; none ends the exploration.

        `rungs` are the shares of the full training at which arms are scored. `left` is the number of full runs that may
        still be used, and the moves cost no more. `width` is the number of arms that run at once, and a round has at
        most that many moves. The choice depends on the arguments alone.
        """
        ...


@dataclass(frozen=True, slots=True)
class Scope:
    """The arms that a policy may add.

    `debugs` allows attempts to mend failed arms, which is of use for planners that write programs. `arms` is the number
    of combinations in the space of the study; None if there is no such bound.
    """

    debugs: bool = False
    arms: int | None = None


@dataclass(slots=True)
class Round:
    """The moves of one round, which are at most `width` and cost at most `left`.

    Enough is always left to train one arm to the last rung: `highest` is the highest rung that an arm has come to.
    """

    tree: SearchTree
    rungs: tuple[float, ...]
    left: float
    width: int
    scope: Scope
    highest: float
    moves: list[Move] = field(default_factory=list[Move])

    @property
    def is_full(self) -> bool:
        return len(self.moves) >= self.width

    @property
    def new_arms(self) -> int:
        return sum(isinstance(move, Expand) for move in self.moves)

    def expand(self, parents: Sequence[str], operator: Operator) -> bool:
        """Add a new arm; return False if the round, the allowance or the space has no room for it."""
        if not self._has_room_for_arm():
            return False
        return self._add(Expand(tuple(parents), operator), self.rungs[0], self.rungs[0])

    def draft(self) -> bool:
        """Add a new arm that is derived from the baseline alone."""
        return self.expand([node.name for node in self.tree.nodes[:1]], Operator.DRAFT)

    def promote(self, node: SearchNode, share: float) -> bool:
        """Train an arm on to a rung; return False if the round or the allowance has no room for it."""
        if any(isinstance(move, Promote) and move.arm == node.name for move in self.moves):
            return False
        return self._add(Promote(node.name, share), share, share - (node.last.share if node.last else 0.0))

    def promote_next(self) -> None:
        """Fill the round with the best arms of the highest rungs, one rung on, as far as the allowance goes."""
        for index in reversed(range(len(self.rungs) - 1)):
            for node in leaders(self.tree, self.rungs[index]):
                if _is_at(node, self.rungs[index]):
                    self.promote(node, self.rungs[index + 1])

    def _has_room_for_arm(self) -> bool:
        count = len(self.tree.nodes) + self.new_arms
        paid = (self.tree.spent + self.left) / self.rungs[0]
        return count < MAX_ARMS_PER_PAID * paid and (self.scope.arms is None or count < self.scope.arms)

    def _add(self, move: Move, share: float, cost: float) -> bool:
        highest = max(self.highest, share)
        if self.is_full or cost + self.rungs[-1] - highest > self.left + TOLERANCE:
            return False
        self.moves.append(move)
        self.left -= cost
        self.highest = highest
        return True


def begin_round(tree: SearchTree, rungs: tuple[float, ...], left: float, width: int, scope: Scope) -> Round:
    """Return a round with the moves that come first under every policy.

    Arms without a score are trained to the first rung: the baseline, and arms of a round that was broken off. Then
    failed arms are mended. If too little is left to finish any arm, the rungs that none can come to are left out.
    """
    highest = max((node.last.share for node in tree.nodes if node.last is not None and not node.failure), default=0.0)
    reached = tuple(rung for rung in rungs if rung <= highest + left + TOLERANCE) or rungs[:1]
    following = Round(tree, reached, left, max(width, 1), scope, highest)
    for node in tree.nodes:
        if not node.scores and not node.failure:
            following.promote(node, reached[0])
    if scope.debugs:
        for node in _to_mend(tree):
            following.expand((node.name,), Operator.DEBUG)
    return following


def leaders(tree: SearchTree, share: float) -> list[SearchNode]:
    """Return the arms that are in and have come to a rung, best first by their scores there."""
    scored = [(node, score) for node in tree.nodes if not node.failure and (score := node.at(share)) is not None]
    return [node for node, _ in sorted(scored, key=lambda pair: -tree.sign * pair[1].score)]


def promotable(tree: SearchTree, rungs: tuple[float, ...]) -> Iterator[tuple[SearchNode, float]]:
    """Yield the arms that go on, each with its next rung, by the rule of asynchronous successive halving.

    An arm goes on as soon as it is among the best of its rung. Twice the training leaves half of the arms (Li et al.
    2020, A System for Massively Parallel Hyperparameter Tuning).
    """
    for share, following in reversed(list(pairwise(rungs))):
        arms = leaders(tree, share)
        for node in arms[: int(len(arms) * share / following + TOLERANCE)]:
            if _is_at(node, share):
                yield node, following


def _is_at(node: SearchNode, share: float) -> bool:
    return node.last is not None and node.last.share == share


def _to_mend(tree: SearchTree) -> Iterator[SearchNode]:
    mended = {node.parents[0] for node in tree.nodes if node.operator is Operator.DEBUG and node.parents}
    for node in tree.nodes:
        if node.failure and node.parents and node.name not in mended and _debugs_before(tree, node) < MAX_DEBUGS:
            yield node


def _debugs_before(tree: SearchTree, node: SearchNode | None) -> int:
    count = 0
    while node is not None and node.operator is Operator.DEBUG and count < MAX_DEBUGS:
        count, node = count + 1, tree.find(node.parents[0])
    return count
