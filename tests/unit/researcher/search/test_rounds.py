"""The check of a round: what a planner may not do with the moves, the arms and the budget of an exploration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from searched_study import BASELINE, FAST, WIDE, make_arm, make_charter, make_round

from experiments_db import Operator
from researcher.errors import PlannerError
from researcher.history import History
from researcher.plan import Plan, Stage
from researcher.record.runs import shares_at, steps_at
from researcher.search.rounds import begin_tree, check_round
from researcher.tree import Expand, Move, Promote, RungScore, SearchNode, SearchTree

CHARTER = make_charter()
SCORE = RungScore(0.25, 2, 0.5, 0.05)
TREE = SearchTree(
    (
        SearchNode("baseline", scores=(SCORE,)),
        SearchNode("fast", ("baseline",), Operator.DRAFT, scores=(SCORE,)),
        SearchNode("wide", ("baseline",), Operator.DRAFT, failure="it crashed"),
    )
)
LATER = History((make_round([BASELINE, FAST, WIDE]),), tree=TREE, runs_left=3.0)
NEW = make_arm("new", lr=5e-3)
DRAFT = Expand(("baseline",), Operator.DRAFT)


@pytest.mark.parametrize(
    ("plan", "moves", "reason"),
    [
        (make_round([make_arm("new", parent="nobody")]), (), "there is no arm nobody"),
        (make_round([replace(NEW, operator=None)]), (), "needs a parent and an operator"),
        (make_round([NEW], new=4), (), "ends at the first rung"),
        (make_round([FAST], fast=3), (), r"its rungs are 0.25 \(step 2\), 0.5 \(step 4\)"),
        (make_round([FAST], fast=2), (), "has come to step 2 already"),
        (make_round([WIDE], wide=4), (), "is out of the search: it crashed"),
        (replace(make_round([NEW]), rungs={}), (), "gives each of them a rung"),
        (make_round([NEW, NEW]), (), "every arm once"),
        (make_round([NEW]), (Promote("fast", 0.5),), "no move adds an arm like new"),
        (make_round([NEW]), (DRAFT, Promote("fast", 0.5)), "leaves out fast"),
        (make_round([FAST], fast=8), (Promote("fast", 0.5),), "to step 4, not to 8"),
        (make_round([FAST], fast=4), (DRAFT,), "no move trains fast on"),
        (make_round([make_arm(f"new {number}", lr=number) for number in range(1, 14)]), (), "3.25 full runs"),
    ],
)
def test_round_that_is_not_as_the_search_says_is_refused(plan: Plan, moves: tuple[Move, ...], reason: str) -> None:
    with pytest.raises(PlannerError, match=reason):
        check_round(CHARTER, LATER, moves, plan)


def test_first_round_has_the_baseline() -> None:
    first = History(tree=begin_tree(SearchTree(), CHARTER), runs_left=3.0)

    with pytest.raises(PlannerError, match="has the baseline, baseline, too"):
        check_round(CHARTER, first, (), make_round([NEW]))
    assert check_round(CHARTER, first, (), make_round([BASELINE, NEW])).stage is Stage.EXPLORE


def test_known_arms_are_those_on_record_and_the_baseline_comes_along() -> None:
    changed = replace(FAST, job={**FAST.job, "lr": 1.0})

    plan = check_round(CHARTER, LATER, (Promote("fast", 1.0), DRAFT), make_round([changed, NEW], fast=8))

    assert {arm.name: arm.job["lr"] for arm in plan.arms} == {"baseline": 1e-3, "fast": 3e-3, "new": 5e-3}
    assert plan.rungs == {"baseline": 8, "fast": 8, "new": 2}
    assert plan.seeds == (0,)


def test_move_that_adds_an_arm_may_stay_open_and_a_round_without_arms_ends_the_exploration() -> None:
    open_move = check_round(CHARTER, LATER, (DRAFT, DRAFT), make_round([NEW]))
    nothing = check_round(CHARTER, LATER, (DRAFT,), make_round([]))

    assert [arm.name for arm in open_move.arms] == ["new"]
    assert nothing.arms == ()


@pytest.mark.parametrize(
    ("total", "steps", "shares"),
    [
        (8, {0.25: 2, 0.5: 4, 1.0: 8}, {2: (0.25,), 4: (0.5,), 8: (1.0,), 3: ()}),
        (2, {0.25: 1, 0.5: 1, 1.0: 2}, {1: (0.25, 0.5), 2: (1.0,)}),
    ],
)
def test_rungs_are_whole_steps_and_a_short_training_comes_to_several_at_once(
    total: int, steps: Mapping[float, int], shares: Mapping[int, tuple[float, ...]]
) -> None:
    assert {share: steps_at(share, total) for share in steps} == steps
    assert {step: shares_at(tuple(steps), total, step) for step in shares} == shares
