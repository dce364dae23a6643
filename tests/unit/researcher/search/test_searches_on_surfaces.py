"""Searches on recorded surfaces find nearly the best arm with a third of the grid's training, and false ones are rare.

Each surface is a full grid of real runs of the bundled model (recipes/surfaces), all on as many episodes. A search may
use a third of the episodes and a third of the steps of the grid.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from scipy import stats
from searched_surface import Surface, explore, load_surface, search_at_random, surfaces

from bench.judge import upper_bound
from bench.judge.bank import judge_one
from bench.judge.many_studies import EvaluatedRuns, measure
from bench.judge.policies import fixed_seeds
from bench.judge.shapes import beta
from experiments_db import Verdict
from researcher.charter import Factor, Level, PolicyName, ProposerName
from researcher.search.policies import POLICIES
from researcher.search.proposers import Levels, combine_all
from researcher.tree import RungScore

DEFAULT = PolicyName.HALVING, ProposerName.OPTUNA
WITHIN = 0.03


def allowance(surface: Surface) -> float:
    """The full runs of a search, as if all of its arms train in as many steps as the longest."""
    return sum(surface.steps.values()) / max(surface.steps.values()) / 3


def found(name: str, policy: PolicyName, proposer: ProposerName, seeds: range) -> list[float]:
    """The true scores of the arms that searches with these seeds end with."""
    surface = load_surface(name)
    ends = [explore(surface, policy, proposer, runs=allowance(surface), seed=seed) for seed in seeds]
    assert all(surface.used(end.tree) <= 1 / 3 + 1e-9 for end in ends)
    return [surface.true_score(end.winner) for end in ends]


def drawn_at_random(name: str, seeds: range) -> np.ndarray:
    """The true scores of the best of as many random arms as these searches may train to the end."""
    surface = load_surface(name)
    drawn = [search_at_random(surface, runs=int(allowance(surface)), seed=seed) for seed in seeds]
    return np.array([surface.true_score(levels) for levels in drawn])


def test_the_default_search_ends_near_the_best_arm_of_all_grids_but_one():
    distance = {name: load_surface(name).best - fmean(found(name, *DEFAULT, seeds=range(3))) for name in surfaces()}
    assert len(distance) == 6 and sum(far > WITHIN for far in distance.values()) <= 1, distance


@pytest.mark.parametrize("name", surfaces(of_programs=True))
def test_the_default_search_ends_near_the_best_program_with_its_settings(name):
    assert load_surface(name).best - fmean(found(name, *DEFAULT, seeds=range(3))) <= WITHIN


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("proposer", ProposerName)
def test_the_same_seed_gives_the_same_tree_and_no_arm_twice(policy, proposer):
    surface = load_surface("reverse")
    first, again = (explore(surface, policy, proposer, runs=5, width=3, seed=7).tree for _ in range(2))
    assert first == again
    assert len({surface.key(node.levels) for node in first.nodes}) == len(first.nodes)


@pytest.mark.slow
def test_a_population_beats_random_arms_of_the_same_training():
    seeds, gains = range(24), np.zeros(24)
    for name in surfaces():
        bred = found(name, PolicyName.POPULATION, ProposerName.OPTUNA, seeds)
        gains += np.array(bred) - drawn_at_random(name, seeds)
    assert stats.ttest_1samp(gains, 0.0, alternative="greater").pvalue < 0.01


@pytest.mark.slow
def test_the_default_search_beats_random_arms_of_the_same_training():
    seeds = range(60)
    gains = np.zeros(len(seeds))
    for name in surfaces():
        gains += np.array(found(name, *DEFAULT, seeds)) - drawn_at_random(name, seeds)
    assert stats.ttest_1samp(gains, 0.0, alternative="greater").pvalue < 0.001


SPACE = tuple(
    Factor(name, tuple(Level(f"{name}={value}", {name: value}, {}) for value in range(count)))
    for name, count in (("one", 4), ("two", 3), ("three", 2))
)
BASELINE = next(combine_all(SPACE))
SEEDS = 6
EPISODES = 400


@dataclass(frozen=True, slots=True)
class AllAlike:
    """A study whose arms all have the same true mean; each arm has its own spread between seeds."""

    mean: float
    spreads: Mapping[tuple[str, ...], float]
    random: np.random.Generator
    space = SPACE
    usual = BASELINE

    def key(self, levels: Levels) -> tuple[str, ...]:
        return tuple(levels[factor.name] for factor in self.space)

    def score(self, levels: Levels, share: float) -> RungScore:
        """A score of the exploring seed, lower at lower rungs, on 200 episodes."""
        true = beta(self.mean * (0.5 + 0.5 * share), self.spreads[self.key(levels)])(self.random, (1,)).scores[0]
        score = self.random.binomial(200, true) / 200
        return RungScore(share, round(100 * share), score, 0.035)

    def runs(self, levels: Levels) -> EvaluatedRuns:
        """The runs of fresh seeds, scored on fresh tasks."""
        drawn = beta(self.mean, self.spreads[self.key(levels)])(self.random, (1, 1, SEEDS))
        return measure(drawn, self.random, EPISODES)


def all_alike(seed: int) -> AllAlike:
    random = np.random.default_rng(seed)
    spreads = {
        tuple(levels[factor.name] for factor in SPACE): float(random.choice((0.02, 0.05, 0.08)))
        for levels in combine_all(SPACE)
    }
    return AllAlike(float(random.choice((0.5, 0.8))), spreads, random)


def confirm(seed: int, proposer: ProposerName) -> tuple[Verdict | None, float]:
    """The verdict on the arm that exploration ends with, and how much its exploring score overstates it."""
    charter = fixed_seeds(1, SEEDS).charter
    charter = replace(charter, rule=replace(charter.rule, shares=()))
    study: Any = all_alike(seed)
    explored = explore(study, PolicyName.HALVING, proposer, runs=8, seed=seed)
    leader = explored.tree.ranked()[0]
    overstated = leader.last.score - study.mean if leader.last is not None else 0.0
    if study.key(explored.winner) == study.key(BASELINE):
        return None, overstated
    verdicts = judge_one(charter, study.runs(explored.winner), study.runs(BASELINE), 0)
    return verdicts["arm-0-0"], overstated


@pytest.mark.parametrize(
    ("studies", "proposer"),
    [
        pytest.param(150, ProposerName.GRID),
        pytest.param(2000, ProposerName.OPTUNA, marks=[pytest.mark.slow, pytest.mark.timeout(1200)]),
    ],
)
def test_exploring_and_confirming_keeps_no_more_useless_arms_than_the_charter_allows(studies, proposer):
    ends = [confirm(seed, proposer) for seed in range(studies)]
    kept = sum(verdict is Verdict.KEEP for verdict, _ in ends)
    # The exploring scores alone would mislead: the best of so many lies far above the truth.
    assert fmean(overstated for _, overstated in ends) > 0.05
    assert kept <= stats.binom.isf(1e-3, studies, 0.05)
    if studies >= 2000:
        assert upper_bound(kept, studies) <= 0.05
