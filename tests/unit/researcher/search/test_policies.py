"""Policies pay what is left and no more, choose the same again, and come to an end."""

from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments_db import Operator
from researcher.charter import PolicyName
from researcher.search.policies import MAX_DEBUGS, POLICIES, TOLERANCE, PolicyBounds, project
from researcher.tree import Expand, Move, Promote, RungScore, SearchNode, SearchTree

RUNGS = (0.25, 0.5, 1.0)
LADDERS = st.lists(st.integers(1, 19), unique=True, max_size=4).map(lambda ends: (*(n / 20 for n in sorted(ends)), 1.0))


def cost_of(move: Move, tree: SearchTree, rungs: tuple[float, ...]) -> float:
    if isinstance(move, Expand):
        return rungs[0]
    node = tree.find(move.arm)
    assert node is not None
    return move.share - (node.last.share if node.last else 0.0)


def scored(name: str, *scores: float, operator=Operator.DRAFT, parents=("baseline",), **more) -> SearchNode:
    found = tuple(
        RungScore(share, round(100 * share), score, 0.03) for share, score in zip(RUNGS, scores, strict=False)
    )
    return SearchNode(name, parents, operator, scores=found, **more)


def carried_out(tree: SearchTree, moves: tuple[Move, ...], rungs: tuple[float, ...], random: Random, failing: float):
    """The tree after a round in which arms score by chance, and some of them fail before they score."""
    nodes = {node.name: node for node in tree.nodes}
    for move in moves:
        name = move.arm if isinstance(move, Promote) else f"arm-{len(nodes)}"
        if isinstance(move, Expand):
            nodes[name] = SearchNode(name, move.parents, move.operator)
        if random.random() < failing and name != "baseline":
            nodes[name] = replace(nodes[name], failure="it crashed")
            continue
        share = move.share if isinstance(move, Promote) else rungs[0]
        score = RungScore(share, round(1000 * share), random.random(), 0.03)
        nodes[name] = replace(nodes[name], scores=(*nodes[name].scores, score))
    return replace(tree, nodes=tuple(nodes.values()))


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=40, deadline=None)
@given(
    rungs=LADDERS,
    runs=st.floats(0.1, 15),
    width=st.integers(1, 6),
    seed=st.integers(0, 10**6),
    sign=st.sampled_from((1.0, -1.0)),
    debugs=st.booleans(),
    failing=st.sampled_from((0.0, 0.3, 1.0)),
    arms=st.one_of(st.none(), st.integers(1, 30)),
)
def test_every_exploration_stays_within_its_allowance_repeats_itself_and_ends(
    name, rungs, runs, width, seed, sign, debugs, failing, arms
):
    policy = POLICIES[name](PolicyBounds(debugs, arms))
    tree, random, paid = SearchTree((SearchNode("baseline"),), sign, seed), Random(seed), 0.0
    for _ in range(1000):
        left = runs - paid
        moves = policy(tree, rungs, left, width)
        assert moves == POLICIES[name](PolicyBounds(debugs, arms))(tree, rungs, left, width)
        if not moves:
            break
        assert len(moves) <= width
        cost = sum(cost_of(move, tree, rungs) for move in moves)
        assert cost <= left + TOLERANCE
        promoted = [move for move in moves if isinstance(move, Promote)]
        assert len({move.arm for move in promoted}) == len(promoted)
        for move in promoted:
            node = tree.find(move.arm)
            assert not node.failure and move.share in rungs
            assert node.last is None or move.share == rungs[rungs.index(node.last.share) + 1]
        tree = carried_out(tree, moves, rungs, random, failing)
        # A failed arm is not charged here: the policy must end nevertheless.
        paid = tree.spent
        assert arms is None or len(tree.nodes) <= max(arms, 1)
    else:
        pytest.fail("the policy does not end")


def explored(name: PolicyName, runs: float, width: int, seed: int = 0, **scope) -> SearchTree:
    """The tree of an exploration without failures."""
    policy, tree, random = POLICIES[name](PolicyBounds(**scope)), SearchTree((SearchNode("baseline"),)), Random(seed)
    while moves := policy(tree, RUNGS, runs - tree.spent, width):
        tree = carried_out(tree, moves, RUNGS, random, 0.0)
    return tree


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("runs", [2.0, 5.0, 12.0])
def test_exploration_without_failures_uses_its_allowance_and_trains_an_arm_to_the_end(name, runs):
    tree = explored(name, runs, 3)
    assert tree.ranked()[0].last.share == 1.0
    assert runs - tree.spent < 0.5


@pytest.mark.parametrize("name", POLICIES)
def test_arms_without_a_score_are_trained_first(name):
    tree = SearchTree((SearchNode("baseline"), SearchNode("unfinished", ("baseline",), Operator.DRAFT)))
    moves = POLICIES[name](PolicyBounds())(tree, RUNGS, 8.0, 2)
    assert moves == (Promote("baseline", 0.25), Promote("unfinished", 0.25))


@pytest.mark.parametrize("name", POLICIES)
def test_failed_arms_are_mended_only_where_programs_are_written(name):
    tree = SearchTree((scored("baseline", 0.4, parents=(), operator=None), scored("broken", failure="it crashed")))
    without = POLICIES[name](PolicyBounds())(tree, RUNGS, 8.0, 4)
    assert all(move.operator is not Operator.DEBUG for move in without if isinstance(move, Expand))
    first, *_ = POLICIES[name](PolicyBounds(debugs=True))(tree, RUNGS, 8.0, 4)
    assert first == Expand(("broken",), Operator.DEBUG)


@pytest.mark.parametrize("name", POLICIES)
def test_an_arm_is_mended_three_times_at_most(name):
    nodes = [scored("baseline", 0.4, parents=(), operator=None), SearchNode("arm", ("baseline",), Operator.DRAFT)]
    policy, attempts = POLICIES[name](PolicyBounds(debugs=True)), 0
    nodes[-1] = replace(nodes[-1], failure="it crashed")
    while True:
        tree = SearchTree(tuple(nodes))
        debugs = [
            move for move in policy(tree, RUNGS, 8.0, 4) if isinstance(move, Expand) and move.operator is Operator.DEBUG
        ]
        if not debugs:
            break
        assert debugs == [Expand((nodes[-1].name,), Operator.DEBUG)]
        attempts += 1
        nodes.append(SearchNode(f"mend-{attempts}", debugs[0].parents, Operator.DEBUG, failure="it crashed"))
    assert attempts == MAX_DEBUGS


def test_halving_begins_as_many_arms_as_can_be_halved_to_the_end():
    tree = explored(PolicyName.HALVING, 8.0, 4, 1)
    reached = Counter(node.last.share for node in tree.nodes)
    # 16 arms cost 4 runs, their better half 2, and half of those 2 again.
    assert reached == {0.25: 8, 0.5: 4, 1.0: 4}


def test_halving_promotes_the_best_of_a_rung_once_all_of_it_is_scored():
    arms = [scored("baseline", 0.4, parents=(), operator=None)]
    arms += [scored(f"arm-{index}", 0.1 * index) for index in range(3)]
    policy = POLICIES[PolicyName.HALVING](PolicyBounds())
    # Two runs in all pay four arms; those of the second half improve the best.
    assert policy(SearchTree(tuple(arms[:1])), RUNGS, 1.75, 1) == (Expand(("baseline",), Operator.DRAFT),)
    assert policy(SearchTree(tuple(arms[:3])), RUNGS, 1.25, 4) == (Expand(("baseline",), Operator.IMPROVE),)
    assert policy(SearchTree(tuple(arms)), RUNGS, 1.0, 4) == (Promote("baseline", 0.5), Promote("arm-2", 0.5))
    downwards = SearchTree(tuple(arms), sign=-1.0)
    assert policy(downwards, RUNGS, 1.0, 4) == (Promote("arm-0", 0.5), Promote("arm-1", 0.5))


def test_halving_finishes_its_best_arms_when_less_is_left_than_was_expected():
    arms = (scored("baseline", 0.4, parents=(), operator=None), *(scored(f"arm-{n}", 0.1 * n) for n in range(8)))
    moves = POLICIES[PolicyName.HALVING](PolicyBounds())(SearchTree(arms), RUNGS, 0.8, 4)
    assert moves[0] == Promote("arm-7", 0.5)
    assert all(isinstance(move, Promote) for move in moves)


def test_a_small_space_is_trained_to_the_end():
    tree = explored(PolicyName.HALVING, 8.0, 4, arms=3)
    assert [node.last.share for node in tree.nodes] == [1.0, 1.0, 1.0]


def test_population_crosses_and_changes_its_better_arms():
    arms = [scored("baseline", 0.1, parents=(), operator=None), *(scored(f"arm-{n}", 0.5 + n / 100) for n in range(8))]
    moves = POLICIES[PolicyName.POPULATION](PolicyBounds())(SearchTree(tuple(arms)), RUNGS, 8.0, 20)
    children = [move for move in moves if isinstance(move, Expand)]
    assert {move.operator for move in children} == {Operator.COMBINE, Operator.TUNE}
    assert "baseline" not in {parent for move in children for parent in move.parents}
    assert all(len(set(move.parents)) == (2 if move.operator is Operator.COMBINE else 1) for move in children)


def test_projected_scores_add_the_gains_of_arms_that_went_on():
    tree = SearchTree((scored("one", 0.2, 0.4, 0.5), scored("two", 0.3, 0.4), scored("three", 0.25)))
    assert project(tree) == pytest.approx({"one": 0.5, "two": 0.5, "three": 0.25 + 0.15 + 0.1})
