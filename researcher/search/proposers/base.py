"""The protocol of a proposer, and the combinations of levels that a move allows.

Place in the flow: a planner hands each move that adds an arm to the charter's proposer, and makes an arm of the levels
that come back. The proposers beside this module choose among what `allowed` returns. This module knows nothing of jobs
or of scores.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations, islice, product
from random import Random
from typing import Protocol

from experiments_db import Operator
from researcher.charter import Factor, ProposerName
from researcher.tree import Expand, SearchTree

Levels = Mapping[str, str]
"""The levels of an arm by factor, each by its name."""
MOST = 4096
"""The combinations among which a proposer chooses; of a larger space it sees a random part."""


class Proposer(Protocol):
    """The method by which a new arm gets its levels."""

    @property
    def name(self) -> ProposerName: ...

    def propose(
        self, tree: SearchTree, space: tuple[Factor, ...], expand: Expand, taken: Collection[Levels]
    ) -> Levels | None:
        """Return the levels of a new arm, or None if every combination of the space is taken.

        A draft may have any levels. A combination has levels of its two parents. Any other arm differs from its parent
        in as few factors as possible. The levels are neither those of an arm in the tree nor in `taken`. The same
        arguments give the same levels.
        """
        ...


def combine_all(space: Sequence[Factor]) -> Iterator[dict[str, str]]:
    """Yield every combination of levels; the last factor changes first."""
    for levels in product(*(factor.levels for factor in space)):
        yield {factor.name: level.name for factor, level in zip(space, levels, strict=True)}


def count_combinations(space: Sequence[Factor]) -> int:
    return math.prod(len(factor.levels) for factor in space)


def allowed(
    tree: SearchTree, space: Sequence[Factor], expand: Expand, taken: Collection[Levels]
) -> list[dict[str, str]]:
    """Return the combinations that a move allows and no arm has; of too many a random part.

    If all that are near the parents are taken, those that are further away are allowed. The list is empty if the whole
    space is taken.
    """
    used = occupied(tree, space, taken)
    for group in _groups(tree, space, expand):
        free = [levels for levels in islice(group, MOST) if key_of(levels, space) not in used]
        if free:
            return free
    return list(islice((levels for levels in combine_all(space) if key_of(levels, space) not in used), 1))


def occupied(tree: SearchTree, space: Sequence[Factor], taken: Collection[Levels]) -> set[tuple[str, ...]]:
    """Return the combinations that arms of the tree have or that are taken, as keys."""
    return {key_of(levels, space) for levels in (*levels_of(tree, space), *taken)}


def levels_of(tree: SearchTree, space: Sequence[Factor]) -> list[Levels]:
    """Return the levels of the arms that lie in the space."""
    return [node.levels for node in tree.nodes if is_within(node.levels, space)]


def is_within(levels: Levels, space: Sequence[Factor]) -> bool:
    """Return whether an arm has a level of every factor of the space."""
    return all(levels.get(factor.name) in {level.name for level in factor.levels} for factor in space)


def key_of(levels: Levels, space: Sequence[Factor]) -> tuple[str, ...]:
    return tuple(levels[factor.name] for factor in space)


def values_of(factor: Factor) -> tuple[float, ...] | None:
    """Return the number of each level; None if the levels of the factor are not all numbers."""
    values = [level.factors.get(factor.name) for level in factor.levels]
    numbers = [float(value) for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    return tuple(numbers) if len(numbers) == len(values) else None


def _groups(tree: SearchTree, space: Sequence[Factor], expand: Expand) -> Iterator[Iterator[dict[str, str]]]:
    """Yield groups of combinations, the nearest to the parents first."""
    parents = [node.levels for name in expand.parents if (node := tree.find(name)) is not None]
    parents = [levels for levels in parents if is_within(levels, space)]
    if expand.operator is Operator.DRAFT or not parents:
        yield combine_all(space) if count_combinations(space) <= MOST else _sample(tree, space)
        return
    if expand.operator is Operator.COMBINE and len(parents) > 1:
        yield _crosses(space, parents)
    for count in range(1, len(space) + 1):
        yield _changes(space, parents[0], count)


def _sample(tree: SearchTree, space: Sequence[Factor]) -> Iterator[dict[str, str]]:
    random = Random(f"{tree.seed}/{len(tree.nodes)}")
    for _ in range(MOST):
        yield {factor.name: random.choice(factor.levels).name for factor in space}


def _crosses(space: Sequence[Factor], parents: Sequence[Levels]) -> Iterator[dict[str, str]]:
    choices = [dict.fromkeys(parent[factor.name] for parent in parents) for factor in space]
    for levels in product(*choices):
        yield {factor.name: level for factor, level in zip(space, levels, strict=True)}


def _changes(space: Sequence[Factor], parent: Levels, count: int) -> Iterator[dict[str, str]]:
    for changed in combinations(space, count):
        others = ([level.name for level in factor.levels if level.name != parent[factor.name]] for factor in changed)
        for levels in product(*others):
            yield {**parent, **{factor.name: level for factor, level in zip(changed, levels, strict=True)}}
