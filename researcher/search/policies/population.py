"""Search by a population: children of the best arms, by crossing two of them or by changing one.

Place in the flow: one of the policies of base.py. It knows nothing of what distinguishes the arms.

A parent is the best of a few arms drawn from the population (Goldberg & Deb 1991, A Comparative Analysis of Selection
Schemes Used in Genetic Algorithms).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from experiments_db import Operator
from researcher.charter import PolicyName
from researcher.search.policies.base import Scope, begin_round, promotable
from researcher.search.projection import project
from researcher.tree import Move, SearchTree

SIZE = 6
"""The arms of the population, and the drafts that begin it."""
TOURNAMENT = 3
"""The arms from which a parent is the best."""
CROSSED = 0.5
"""The part of the children that have two parents."""


@dataclass(frozen=True, slots=True)
class PopulationPolicy:
    """A policy that breeds the best arms, and trains on those among the best of their rung."""

    scope: Scope
    name = PolicyName.POPULATION

    def choose(self, tree: SearchTree, rungs: tuple[float, ...], left: float, width: int) -> tuple[Move, ...]:
        following = begin_round(tree, rungs, left, width, self.scope)
        drafts = sum(node.operator is Operator.DRAFT and not node.failure for node in tree.nodes)
        while drafts < SIZE and following.draft():
            drafts += 1
        values = project(tree)
        if drafts >= SIZE and values:
            for node, share in promotable(tree, following.rungs):
                following.promote(node, share)
            population = sorted(values, key=lambda name: -values[name])[:SIZE]
            random = Random(f"{tree.seed}/{len(tree.nodes)}/{tree.spent}")
            while following.expand(*_breed(population, values, random)):
                pass
        if not following.moves:
            following.promote_next()
        return tuple(following.moves)


def _breed(population: Sequence[str], values: Mapping[str, float], random: Random) -> tuple[tuple[str, ...], Operator]:
    first = _select(population, values, random)
    others = [name for name in population if name != first]
    if others and random.random() < CROSSED:
        return (first, _select(others, values, random)), Operator.COMBINE
    return (first,), Operator.TUNE


def _select(arms: Sequence[str], values: Mapping[str, float], random: Random) -> str:
    drawn = random.sample(list(arms), min(TOURNAMENT, len(arms)))
    return max(drawn, key=lambda name: values[name])
