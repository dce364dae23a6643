"""Proposers fill a move with levels that no arm has, near its parents, until the space is used up."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments_db import Operator
from researcher.charter import Factor, Level, ProposerName
from researcher.question.factors import SPECS
from researcher.question.flags import make_factor
from researcher.search.proposers import PROPOSERS, combine_all, count_combinations
from researcher.tree import Expand, RungScore, SearchNode, SearchTree

SPACE = (
    make_factor(SPECS["lr"], [1e-4, 3e-4, 1e-3, 3e-3]),
    make_factor(SPECS["num_repeat"], [4, 8, 16]),
    make_factor(SPECS["algorithm"], ["grpo", "rloo"]),
)
DRAFT = Expand(("baseline",), Operator.DRAFT)


def node(name: str, levels, score: float | None = 0.5, **more) -> SearchNode:
    scores = () if score is None else (RungScore(0.25, 10, score, 0.03),)
    return SearchNode(name, ("baseline",), Operator.DRAFT, levels, scores, **more)


def tree_of(*levels, seed: int = 0, score=lambda levels: 0.5) -> SearchTree:
    return SearchTree(tuple(node(f"arm-{n}", each, score(each)) for n, each in enumerate(levels)), seed=seed)


def differing(one, other) -> int:
    return sum(one[name] != other[name] for name in one)


@pytest.mark.parametrize("name", ProposerName)
@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    operators=st.lists(st.sampled_from((Operator.DRAFT, Operator.TUNE, Operator.COMBINE)), min_size=30, max_size=30),
)
def test_no_combination_is_proposed_twice_and_all_are_before_a_space_is_used_up(name, seed, operators):
    propose, arms = PROPOSERS[name], list(combine_all(SPACE))[:2]
    for operator in operators:
        tree = tree_of(*arms, seed=seed, score=lambda levels: 0.1 * len(levels["lr"]))
        expand = Expand(("arm-0", f"arm-{len(arms) - 1}"), operator)
        levels = propose(tree, SPACE, expand, ())
        assert levels == PROPOSERS[name](tree, SPACE, expand, ())
        if levels is None:
            break
        assert levels not in arms
        arms.append(dict(levels))
    assert len(arms) == count_combinations(SPACE) == 24


@pytest.mark.parametrize("name", ProposerName)
def test_levels_that_the_round_has_given_away_are_not_proposed(name):
    first, *_, last = combine_all(SPACE)
    taken = [levels for levels in combine_all(SPACE) if levels not in (first, last)]
    assert PROPOSERS[name](tree_of(first), SPACE, DRAFT, taken) == last
    assert PROPOSERS[name](tree_of(first), SPACE, DRAFT, [*taken, last]) is None


@pytest.mark.parametrize("name", ProposerName)
@pytest.mark.parametrize("operator", [Operator.TUNE, Operator.IMPROVE, Operator.DEBUG])
def test_a_tuned_arm_differs_from_its_parent_in_as_few_factors_as_possible(name, operator):
    parent, expand = next(iter(combine_all(SPACE))), Expand(("arm-0",), operator)
    levels = PROPOSERS[name](tree_of(parent), SPACE, expand, ())
    assert differing(levels, parent) == 1
    near = [each for each in combine_all(SPACE) if differing(each, parent) == 1]
    levels = PROPOSERS[name](tree_of(parent), SPACE, expand, near)
    assert differing(levels, parent) == 2


@pytest.mark.parametrize("name", ProposerName)
def test_a_combination_has_the_levels_of_its_parents(name):
    first, *_, last = combine_all(SPACE)
    expand = Expand(("arm-0", "arm-1"), Operator.COMBINE)
    levels = PROPOSERS[name](tree_of(first, last), SPACE, expand, ())
    assert all(levels[factor] in (first[factor], last[factor]) for factor in levels)
    assert levels not in (first, last)


@pytest.mark.parametrize("name", ProposerName)
def test_arms_outside_of_the_space_and_failed_arms_are_no_obstacle(name):
    first, second, *_ = combine_all(SPACE)
    arms = (
        SearchNode("baseline"),
        node("foreign", {"lr": "lr=7"}),
        node("broken", first, None, failure="it crashed"),
        node("running", second, None),
    )
    levels = PROPOSERS[name](SearchTree(arms), SPACE, Expand(("foreign",), Operator.TUNE), ())
    assert levels is not None and levels not in (first, second)


def test_the_grid_is_gone_through_in_order():
    propose, arms = PROPOSERS[ProposerName.GRID], []
    for expected in list(combine_all(SPACE))[:5]:
        arms.append(propose(tree_of(*arms), SPACE, DRAFT, ()))
        assert arms[-1] == expected


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_optuna_samples_where_the_better_arms_are(sign):
    levels = list(combine_all(SPACE))
    arms = [node(f"arm-{n}", each, sign * each["lr"].endswith("0.001")) for n, each in enumerate(levels) if n % 3]
    found = [
        PROPOSERS[ProposerName.OPTUNA](SearchTree(tuple(arms), sign, seed), SPACE, DRAFT, ())["lr"]
        for seed in range(12)
    ]
    assert found.count("lr=0.001") > 12 / 4


@pytest.mark.parametrize("name", ProposerName)
def test_a_large_space_is_not_enumerated(name):
    space = tuple(
        Factor(f"factor-{n}", tuple(Level(f"{n}-{level}", {f"factor-{n}": level}, {}) for level in range(8)))
        for n in range(12)
    )
    baseline = {factor.name: factor.levels[0].name for factor in space}
    for operator in (Operator.DRAFT, Operator.TUNE):
        expand = Expand(("arm-0",), operator)
        assert PROPOSERS[name](tree_of(baseline), space, expand, ()) not in (None, baseline)
