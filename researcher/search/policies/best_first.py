"""Best-first search: the arm with the best upper confidence bound gets the next child.

Place in the flow: one of the policies of base.py. It knows nothing of what distinguishes the arms.

The bound of an arm is its projected score, plus its standard error, plus a term that falls with its children. The last
one is that of UCB1 (Auer, Cesa-Bianchi & Fischer 2002, Machine Learning 47:235-256), in units of the scores' spread.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from experiments_db import Operator
from researcher.charter import PolicyName
from researcher.search.policies.base import Round, Scope, begin_round, promotable
from researcher.search.projection import project
from researcher.tree import Expand, Move, SearchTree

DRAFTS = 3
"""The drafts before the first arm that is derived from another one."""
STDERRS = 1.0
"""The standard errors in the bound of an arm."""
EXPLORATION = 0.5
"""The weight of the term that falls with the children of an arm."""
OPERATORS = (Operator.IMPROVE, Operator.TUNE, Operator.COMBINE)
"""The operators of the children of one arm, in turn."""


@dataclass(frozen=True, slots=True)
class BestFirstPolicy:
    """A policy that expands the most promising arms, and trains on those among the best of their rung."""

    scope: Scope
    name = PolicyName.BEST_FIRST

    def choose(self, tree: SearchTree, rungs: tuple[float, ...], left: float, width: int) -> tuple[Move, ...]:
        following = begin_round(tree, rungs, left, width, self.scope)
        drafts = sum(node.operator is Operator.DRAFT and not node.failure for node in tree.nodes)
        while drafts < DRAFTS and following.draft():
            drafts += 1
        if drafts >= DRAFTS and tree.ranked():
            for node, share in promotable(tree, following.rungs):
                following.promote(node, share)
            while _expand_best(following):
                pass
        if not following.moves:
            following.promote_next()
        return tuple(following.moves)


def _expand_best(following: Round) -> bool:
    children = Counter(parent for node in following.tree.nodes for parent in node.parents[:1])
    children.update(move.parents[0] for move in following.moves if isinstance(move, Expand) and move.parents)
    bounds = _bounds(following.tree, project(following.tree), children)
    best, *others = sorted(bounds, key=lambda name: -bounds[name])
    operator = OPERATORS[children[best] % len(OPERATORS)]
    if operator is Operator.COMBINE and others:
        return following.expand((best, others[0]), operator)
    return following.expand((best,), Operator.TUNE if operator is Operator.COMBINE else operator)


def _bounds(tree: SearchTree, values: Mapping[str, float], children: Mapping[str, int]) -> dict[str, float]:
    spread = max(values.values()) - min(values.values())
    total = math.log(1 + sum(children.values()))
    errors = {node.name: node.last.stderr for node in tree.nodes if node.last is not None}
    return {
        name: value + STDERRS * errors[name] + EXPLORATION * spread * math.sqrt(total / (1 + children.get(name, 0)))
        for name, value in values.items()
    }
