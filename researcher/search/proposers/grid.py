"""The proposer that goes through a space in order.

Place in the flow: one of the proposers of base.py. It looks at no score.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from experiments_db import Operator
from researcher.charter import Factor, ProposerName
from researcher.search.proposers.base import Levels, allowed, combine_all, key_of, occupied
from researcher.tree import Expand, SearchTree


@dataclass(frozen=True, slots=True)
class GridProposer:
    """A proposer of the first free combination."""

    name = ProposerName.GRID

    def propose(
        self, tree: SearchTree, space: tuple[Factor, ...], expand: Expand, taken: Collection[Levels]
    ) -> Levels | None:
        if expand.operator is Operator.DRAFT:
            used = occupied(tree, space, taken)
            return next((levels for levels in combine_all(space) if key_of(levels, space) not in used), None)
        return next(iter(allowed(tree, space, expand, taken)), None)
