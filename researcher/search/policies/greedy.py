"""Greedy search: a few drafts, then one improvement of the best arm after the other.

Place in the flow: one of the policies of base.py. It knows nothing of what distinguishes the arms.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from experiments_db import Operator
from researcher.charter import PolicyName
from researcher.search.policies.base import Round, Scope, begin_round, leaders
from researcher.tree import Move, SearchTree

DRAFTS = 3
"""The drafts before the first improvement."""


@dataclass(frozen=True, slots=True)
class GreedyPolicy:
    """A policy that improves the best arm, and trains on the best arm of each rung."""

    scope: Scope
    name = PolicyName.GREEDY

    def choose(self, tree: SearchTree, rungs: tuple[float, ...], left: float, width: int) -> tuple[Move, ...]:
        following = begin_round(tree, rungs, left, width, self.scope)
        drafts = sum(node.operator is Operator.DRAFT and not node.failure for node in tree.nodes)
        while drafts < DRAFTS and following.draft():
            drafts += 1
        ranked = tree.ranked()
        if ranked and not following.moves:
            _promote_leaders(following)
            while following.expand((ranked[0].name,), Operator.IMPROVE):
                pass
        if not following.moves:
            following.promote_next()
        return tuple(following.moves)


def _promote_leaders(following: Round) -> None:
    for share, higher in pairwise(following.rungs):
        for node in leaders(following.tree, share)[:1]:
            if node.last is not None and node.last.share == share:
                following.promote(node, higher)
