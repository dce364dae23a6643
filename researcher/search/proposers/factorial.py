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
from researcher.search.projection import mean_gains
from researcher.search.proposers.base import Levels, allowed, is_within, levels_of
from researcher.tree import Expand, SearchTree

SCREENED = 512
"""The combinations from which each arm of the screening design is chosen."""
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
    drawn = random.sample(list(choices), min(SCREENED, len(choices)))
    return min(
        drawn,
        key=lambda levels: (
            sum(singles[item] for item in levels.items()),
            sum(pairs[pair] for pair in combinations(sorted(levels.items()), 2)),
        ),
    )


def _predict(tree: SearchTree, space: Sequence[Factor], choices: Sequence[Levels]) -> Any:
    """Return the upper bounds of the predicted scores; None if nothing is scored.

    Every score is an observation, less the mean gain up to its rung.
    """
    arms = [node for node in tree.nodes if is_within(node.levels, space) and not node.failure]
    seen = [(node.levels, score) for node in arms for score in node.scores]
    if not seen:
        return None
    gains = mean_gains(tree)
    scores = tree.sign * np.array([score.score - gains[score.share] for _, score in seen])
    scores = (scores - scores.mean()) / (scores.std() or 1.0)
    observed = _indicate(space, [levels for levels, _ in seen])
    strength, _ = _fit(_cross(observed, ()), scores, 0)
    strongest = sorted(range(len(space)), key=lambda index: -_size(observed, strength, index))[:INTERACTING]
    pairs = tuple(combinations(sorted(strongest), 2))
    matrix = _cross(observed, pairs)
    interactions = matrix.shape[1] - len(strength)
    effects, covariance = _fit(matrix, scores, interactions)
    wanted = _cross(_indicate(space, choices), pairs)
    return wanted @ effects + OPTIMISM * np.sqrt(((wanted @ covariance) * wanted).sum(axis=1))


def _indicate(space: Sequence[Factor], arms: Sequence[Levels]) -> list[Any]:
    """Return a matrix for each factor, with a row for each arm and a column for each level."""
    return [
        np.array([[arm[factor.name] == level.name for level in factor.levels] for arm in arms], dtype=float)
        for factor in space
    ]


def _cross(factors: Sequence[Any], pairs: Sequence[tuple[int, int]]) -> Any:
    """Return the columns of all factors, and of each pair the products of their columns."""
    products = [
        (factors[one][:, :, None] * factors[other][:, None, :]).reshape(len(factors[one]), -1) for one, other in pairs
    ]
    return np.concatenate([*factors, *products], axis=1)


def _fit(matrix: Any, scores: Any, interactions: int) -> tuple[Any, Any]:
    """Return the posterior means of the effects and their covariance; the last columns are `interactions`."""
    prior = np.ones(matrix.shape[1])
    prior[len(prior) - interactions :] = PRIOR_OF_INTERACTION**2
    covariance = np.linalg.inv(matrix.T @ matrix / NOISE**2 + np.diag(1 / prior))
    return covariance @ matrix.T @ scores / NOISE**2, covariance


def _size(factors: Sequence[Any], effects: Any, index: int) -> float:
    """Return the largest difference that a factor makes."""
    first = sum(factor.shape[1] for factor in factors[:index])
    own = effects[first : first + factors[index].shape[1]]
    return float(own.max() - own.min())
