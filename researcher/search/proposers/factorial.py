"""The proposer of designed experiments: a screening design, then a linear model of the scores.

Place in the flow: one of the proposers of base.py. It knows nothing of rungs beyond the scores that nodes have.

The screening design is a fraction of the grid in which all levels, and all pairs of levels, occur about equally often.
It has as many arms as the space has main effects. The model has main effects and the interactions of the strongest
factors (Box, Hunter & Hunter 2005, Statistics for Experimenters, chapters 6 and 12). It is a Bayesian regression, in
which interactions are expected to be smaller. The arm with the best upper bound is proposed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import combinations
from random import Random
from typing import Any

import numpy as np

from experiments_db import Operator
from researcher.charter import Factor, ProposerName
from researcher.search.proposers.base import Levels, allowed, is_within, levels_of
from researcher.search.tree import Expand, SearchTree

INTERACTING = 3
"""The strongest factors, whose interactions the model has."""
PRIOR_OF_INTERACTION = 0.5
"""The expected size of an interaction, where that of a main effect is 1."""
NOISE = 0.3
"""The expected deviation of a score from the model, in the same units."""
OPTIMISM = 1.0
"""The posterior deviations that are added to a prediction."""


@dataclass(frozen=True, slots=True)
class FactorialProposer:
    """A proposer that screens the factors first, and then proposes what a model of their effects predicts as best."""

    name = ProposerName.FACTORIAL

    def propose(
        self, tree: SearchTree, space: tuple[Factor, ...], expand: Expand, taken: Collection[Levels]
    ) -> Levels | None:
        choices = allowed(tree, space, expand, taken)
        if not choices:
            return None
        known = [*levels_of(tree, space), *taken]
        if expand.operator is Operator.DRAFT and len(known) <= _main_effects(space):
            return _balance(choices, known, Random(f"{tree.seed}/{len(known)}"))
        bounds = _predict(tree, space, choices)
        return choices[int(np.argmax(bounds))] if bounds is not None else choices[0]


def _main_effects(space: Sequence[Factor]) -> int:
    return sum(len(factor.levels) - 1 for factor in space)


def _balance(choices: Sequence[Levels], known: Sequence[Levels], random: Random) -> Levels:
    """Return the combination whose levels, and pairs of levels, are the rarest so far."""
    singles = Counter(item for levels in known for item in levels.items())
    pairs = Counter(pair for levels in known for pair in combinations(sorted(levels.items()), 2))
    shuffled = random.sample(list(choices), len(choices))
    return min(
        shuffled,
        key=lambda levels: (
            sum(singles[item] for item in levels.items()),
            sum(pairs[pair] for pair in combinations(sorted(levels.items()), 2)),
        ),
    )


def _predict(tree: SearchTree, space: Sequence[Factor], choices: Sequence[Levels]) -> Any:
    """Return the upper bounds of the predicted scores; None if nothing is scored.

    Every score is an observation. A rung shifts all scores by the same amount.
    """
    seen = [
        (node.levels, score)
        for node in tree.nodes
        if is_within(node.levels, space) and not node.failure
        for score in node.scores
    ]
    if not seen:
        return None
    rungs = sorted({score.share for _, score in seen})
    scores = tree.sign * np.array([score.score for _, score in seen])
    at_rungs = np.array([[score.share == rung for rung in rungs] for _, score in seen], dtype=float)
    scores = scores - at_rungs @ (at_rungs.T @ scores / at_rungs.sum(axis=0))
    scores = scores / (scores.std() or 1.0)
    observed = [levels for levels, _ in seen]
    main, prior = _columns(space, [])
    strength, _ = _fit(_matrix(main, observed), scores, prior)
    strongest = sorted(space, key=lambda factor: -_size(main, strength, factor))[:INTERACTING]
    columns, prior = _columns(space, list(combinations(strongest, 2)))
    effects, covariance = _fit(_matrix(columns, observed), scores, prior)
    wanted = _matrix(columns, choices)
    deviations = np.sqrt(np.einsum("ij,jk,ik->i", wanted, covariance, wanted))
    return wanted @ effects + OPTIMISM * deviations


_Column = tuple[tuple[str, str], ...]
"""The levels that an arm must all have for the column to be 1."""


def _columns(
    space: Sequence[Factor], interactions: Sequence[tuple[Factor, Factor]]
) -> tuple[list[_Column], list[float]]:
    main: list[_Column] = [((factor.name, level.name),) for factor in space for level in factor.levels]
    crossed: list[_Column] = [
        ((one.name, first.name), (other.name, second.name))
        for one, other in interactions
        for first in one.levels
        for second in other.levels
    ]
    return main + crossed, [1.0] * len(main) + [PRIOR_OF_INTERACTION**2] * len(crossed)


def _matrix(columns: Sequence[_Column], arms: Sequence[Levels]) -> Any:
    rows = [[all(arm[name] == level for name, level in column) for column in columns] for arm in arms]
    return np.array(rows, dtype=float)


def _fit(matrix: Any, scores: Any, prior: Sequence[float]) -> tuple[Any, Any]:
    """Return the posterior means of the effects and their covariance."""
    covariance = np.linalg.inv(matrix.T @ matrix / NOISE**2 + np.diag(1 / np.array(prior)))
    return covariance @ matrix.T @ scores / NOISE**2, covariance


def _size(columns: Sequence[_Column], effects: Any, factor: Factor) -> float:
    of_levels = [effect for column, effect in zip(columns, effects, strict=True) if column[0][0] == factor.name]
    return max(of_levels) - min(of_levels)
