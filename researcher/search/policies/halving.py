"""Successive halving: many arms to the first rung, the better part of them on to the next one.

Place in the flow: one of the policies of base.py, and the default. It knows nothing of what distinguishes the arms.

It is Jamieson & Talwalkar's method (2016, Non-stochastic Best Arm Identification and Hyperparameter Optimization), with
trainings that go on from their checkpoints. An arm that goes on costs only the way from its rung. The number of arms is
the largest that the allowance pays up to the last rung. It is computed anew for every round. If less is left than was
expected, there are fewer new arms, and the best ones still finish. In a space that is much larger than the number of
arms, new ones of the second half are better sought around the best of the first half.

Hyperband (Li et al. 2018, JMLR 18:1-52) repeats this in brackets that begin with fewer arms at higher rungs. There are
no such brackets here, because every arm begins at the first rung.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from experiments_db import Operator
from researcher.charter import PolicyName
from researcher.search.policies.base import TOLERANCE, Round, Scope, begin_round, leaders
from researcher.tree import Move, SearchTree

DRAFTED = 0.5
"""The part of the arms that are drafts."""
BEST = 0.25
"""The part of the first rung whose arms are improved."""


@dataclass(frozen=True, slots=True)
class HalvingPolicy:
    """A policy that begins as many arms as it can, and trains on the best of each rung once all of it is scored."""

    scope: Scope
    name = PolicyName.HALVING

    def choose(self, tree: SearchTree, rungs: tuple[float, ...], left: float, width: int) -> tuple[Move, ...]:
        following = begin_round(tree, rungs, left, width, self.scope)
        sizes = _sizes(tree.spent + left, following.rungs, self.scope.arms)
        begun = sum(not node.failure for node in tree.nodes) + following.new_arms
        while begun < sizes[0] and _begin(following, begun, sizes[0]):
            begun += 1
        if not following.moves:
            _promote_best(following, sizes)
        if not following.moves:
            following.promote_next()
        return tuple(following.moves)


def _begin(following: Round, begun: int, arms: int) -> bool:
    """Add an arm: a draft, or in the second half of the arms an improvement of one of the best, in turn."""
    best = leaders(following.tree, following.rungs[0])
    best = best[: max(1, int(BEST * len(best)))]
    if begun < DRAFTED * arms or not best:
        return following.draft()
    return following.expand((best[begun % len(best)].name,), Operator.IMPROVE)


def _promote_best(following: Round, sizes: Sequence[int]) -> None:
    """Train on the best arms of the lowest rung at which such arms wait."""
    rungs = following.rungs
    for index, share in enumerate(rungs[:-1]):
        for node in leaders(following.tree, share)[: sizes[index + 1]]:
            if node.last is not None and node.last.share == share:
                following.promote(node, rungs[index + 1])
        if following.moves:
            return


def _sizes(allowance: float, rungs: Sequence[float], most: int | None) -> list[int]:
    """Return the number of arms at each rung: the most that the allowance pays, at least one."""
    arms = 1
    while (most is None or arms < most) and _cost(_counts(arms + 1, rungs), rungs) <= allowance + TOLERANCE:
        arms += 1
    return _counts(arms, rungs)


def _counts(arms: int, rungs: Sequence[float]) -> list[int]:
    """Return the arms that come to each rung: to a rung of twice the training come half of them."""
    return [max(1, int(arms * rungs[0] / share + TOLERANCE)) for share in rungs]


def _cost(counts: Sequence[int], rungs: Sequence[float]) -> float:
    steps = (share - before for before, share in zip((0.0, *rungs), rungs, strict=False))
    return sum(count * step for count, step in zip(counts, steps, strict=True))
