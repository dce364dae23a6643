"""The proposer that samples from the better part of the space: Optuna's tree-structured Parzen estimator.

Place in the flow: one of the proposers of base.py. The library is fed with the scores of the tree for every proposal,
so that nothing has to be stored. It is imported where it is needed, because it is heavy.

The estimator (Bergstra et al. 2011, Algorithms for Hyper-Parameter Optimization) samples where the better arms lie more
densely than the others. An arm that is not trained to the end counts like a pruned trial: a higher rung is better, and
of equal rungs the better score.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from experiments_db import Operator
from researcher.charter import Factor, ProposerName
from researcher.search.proposers.base import Levels, allowed, is_within, key_of, occupied, values_of
from researcher.tree import Expand, SearchNode, SearchTree

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial

RANDOM_ARMS = 6
"""The arms that are drawn at random, before the estimator has enough scores."""
TRIES = 16
"""The samples for a draft until one is free; then the free combination nearest to the last sample is taken."""


@dataclass(frozen=True, slots=True)
class OptunaProposer:
    """A proposer of what resembles the better arms and not the others."""

    name = ProposerName.OPTUNA

    def propose(
        self, tree: SearchTree, space: tuple[Factor, ...], expand: Expand, taken: Collection[Levels]
    ) -> Levels | None:
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


@dataclass(frozen=True, slots=True)
class _Axis:
    """A factor as the library sees it: the places of its levels on a line, or unordered names."""

    name: str
    levels: tuple[str, ...]
    is_ordered: bool

    @classmethod
    def of(cls, factor: Factor) -> _Axis:
        names, values = [level.name for level in factor.levels], values_of(factor)
        if values is None:
            return cls(factor.name, tuple(names), is_ordered=False)
        ordered = [name for _, name in sorted(zip(values, names, strict=True))]
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
