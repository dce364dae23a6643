"""The proposers of exploration: the methods by which a new arm gets its levels."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice, product
from random import Random
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from experiments_db import Operator
from researcher.charter import Factor, ProposerName
from researcher.tree import Expand, SearchNode, SearchTree

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial

Levels = Mapping[str, str]
"""The levels of an arm by factor, each by its name."""
ProposeLevels = Callable[[SearchTree, tuple[Factor, ...], Expand, Collection[Levels]], Levels | None]
"""The levels of the arm that a move adds within a space; None if every combination of the space is taken.

A draft may have any levels. A combination has levels of its two parents. Any other arm differs from its parent in as
few factors as possible. The levels are neither those of an arm in the tree nor among those taken. The same arguments
give the same levels.
"""
MOST = 4096
"""The combinations among which a proposer chooses; of a larger space it sees a random part."""
RANDOM_ARMS = 6
"""The arms that are drawn at random, before Optuna's estimator has enough scores."""
TRIES = 16
"""The samples for a draft until one is free; then the free combination nearest to the last sample is taken."""


def propose_in_order(
    tree: SearchTree, space: tuple[Factor, ...], expand: Expand, taken: Collection[Levels]
) -> Levels | None:
    """Propose the first free combination."""
    if expand.operator is Operator.DRAFT:
        used = occupied(tree, space, taken)
        return next((levels for levels in combine_all(space) if key_of(levels, space) not in used), None)
    return next(iter(allowed(tree, space, expand, taken)), None)


def propose_by_optuna(
    tree: SearchTree, space: tuple[Factor, ...], expand: Expand, taken: Collection[Levels]
) -> Levels | None:
    """Propose what resembles the better arms and not the others, by Optuna's tree-structured Parzen estimator.

    The estimator (Bergstra et al. 2011, Algorithms for Hyper-Parameter Optimization) samples where the better arms lie
    more densely than the others. An arm that is not trained to the end counts like a pruned trial: a higher rung is
    better, and of equal rungs the better score. All scores are handed over anew, so that nothing has to be stored.
    """
    axes = [_Axis.of(factor) for factor in space]
    study = _build_study(tree, space, axes, taken)
    used = occupied(tree, space, taken)
    sampled: dict[str, str] = {}
    for _ in range(TRIES if expand.operator is Operator.DRAFT else 1):
        sampled = _sample(study, axes)
        if expand.operator is Operator.DRAFT and key_of(sampled, space) not in used:
            return sampled
    choices = allowed(tree, space, expand, taken)
    return min(choices, key=lambda levels: _distance(levels, sampled, axes)) if choices else None


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
    known = [node.levels for node in tree.nodes if is_within(node.levels, space)]
    return {key_of(levels, space) for levels in (*known, *taken)}


def is_within(levels: Levels, space: Sequence[Factor]) -> bool:
    """Return whether an arm has a level of every factor of the space."""
    return all(levels.get(factor.name) in {level.name for level in factor.levels} for factor in space)


def key_of(levels: Levels, space: Sequence[Factor]) -> tuple[str, ...]:
    return tuple(levels[factor.name] for factor in space)


def _groups(tree: SearchTree, space: Sequence[Factor], expand: Expand) -> Iterator[Iterator[dict[str, str]]]:
    """Yield groups of combinations, the nearest to the parents first."""
    parents = [node.levels for name in expand.parents if (node := tree.find(name)) is not None]
    parents = [levels for levels in parents if is_within(levels, space)]
    if expand.operator is Operator.DRAFT or not parents:
        yield combine_all(space) if count_combinations(space) <= MOST else _draw(tree, space)
        return
    if expand.operator is Operator.COMBINE and len(parents) > 1:
        yield _crosses(space, parents)
    for count in range(1, len(space) + 1):
        yield _changes(space, parents[0], count)


def _draw(tree: SearchTree, space: Sequence[Factor]) -> Iterator[dict[str, str]]:
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


@dataclass(frozen=True, slots=True)
class _Axis:
    """A factor as the library sees it: the places of its levels on a line, or unordered names."""

    name: str
    levels: tuple[str, ...]
    is_ordered: bool

    @classmethod
    def of(cls, factor: Factor) -> _Axis:
        names = [level.name for level in factor.levels]
        values: list[Any] = [level.factors.get(factor.name) for level in factor.levels]
        if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
            return cls(factor.name, tuple(names), is_ordered=False)
        ordered = [name for _, name in sorted(zip(map(float, values), names, strict=True))]
        return cls(factor.name, tuple(ordered), is_ordered=True)

    def distribution(self) -> Any:
        from optuna.distributions import CategoricalDistribution, IntDistribution

        return IntDistribution(0, len(self.levels) - 1) if self.is_ordered else CategoricalDistribution(self.levels)

    def encode(self, level: str) -> int | str:
        return self.levels.index(level) if self.is_ordered else level

    def decode(self, value: Any) -> str:
        return self.levels[value] if self.is_ordered else value

    def distance(self, one: str, other: str) -> float:
        if not self.is_ordered or one == other:
            return float(one != other)
        return 0.5 + 0.5 * abs(self.levels.index(one) - self.levels.index(other)) / (len(self.levels) - 1)


def _build_study(tree: SearchTree, space: Sequence[Factor], axes: Sequence[_Axis], taken: Collection[Levels]) -> Study:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    known = [node for node in tree.nodes if is_within(node.levels, space)]
    with warnings.catch_warnings():
        # Two options of the sampler are marked as experimental.
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(
            n_startup_trials=RANDOM_ARMS,
            multivariate=True,
            constant_liar=True,
            seed=Random(f"{tree.seed}/{len(known)}/{len(taken)}").randrange(2**32),
        )
    study = optuna.create_study(direction="maximize" if tree.sign > 0 else "minimize", sampler=sampler)
    highest = max((node.last.share for node in known if node.last is not None), default=1.0)
    study.add_trials([_as_trial(node, axes, highest) for node in known])
    study.add_trials([_waiting(levels, axes) for levels in taken])
    return study


def _as_trial(node: SearchNode, axes: Sequence[_Axis], highest: float) -> FrozenTrial:
    """Return an arm as a trial; one that failed is a pruned trial without scores, the worst of all."""
    import optuna

    states = optuna.trial.TrialState
    if node.last is None and not node.failure:
        return _waiting(node.levels, axes)
    is_complete = node.last is not None and node.last.share >= highest and not node.failure
    scores = {} if node.failure else {round(1e6 * score.share): score.score for score in node.scores}
    return optuna.trial.create_trial(
        state=states.COMPLETE if is_complete else states.PRUNED,
        value=node.last.score if is_complete and node.last is not None else None,
        intermediate_values=scores,
        **_parameters(node.levels, axes),
    )


def _waiting(levels: Levels, axes: Sequence[_Axis]) -> FrozenTrial:
    import optuna

    return optuna.trial.create_trial(state=optuna.trial.TrialState.RUNNING, **_parameters(levels, axes))


def _parameters(levels: Levels, axes: Sequence[_Axis]) -> Mapping[str, Any]:
    return {
        "params": {axis.name: axis.encode(levels[axis.name]) for axis in axes},
        "distributions": {axis.name: axis.distribution() for axis in axes},
    }


def _sample(study: Study, axes: Sequence[_Axis]) -> dict[str, str]:
    trial = study.ask({axis.name: axis.distribution() for axis in axes})
    return {axis.name: axis.decode(trial.params[axis.name]) for axis in axes}


def _distance(one: Levels, other: Levels, axes: Sequence[_Axis]) -> float:
    return sum(axis.distance(one[axis.name], other[axis.name]) for axis in axes)


PROPOSERS: Mapping[ProposerName, ProposeLevels] = MappingProxyType(
    {ProposerName.GRID: propose_in_order, ProposerName.OPTUNA: propose_by_optuna}
)
"""The proposers by name."""
