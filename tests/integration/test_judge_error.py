"""Simulated studies through the real nodes: how often a useless arm is kept, and whether a better one is found."""

from __future__ import annotations

from typing import Any

import pytest

BETTER = "lr=0.003"
FEW_OR_MANY = pytest.mark.parametrize("studies", [10, pytest.param(120, marks=pytest.mark.slow)])


@pytest.fixture(scope="module")
def judge() -> Any:
    import bench.judge

    return bench.judge


def most_by_chance(rate: float, studies: int) -> int:
    """The bound that a right implementation exceeds less than once in a million times."""
    from scipy import stats

    return int(stats.binom.isf(1e-6, studies, rate))


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("policy", "studies"),
    [
        ("fixed", 10),
        pytest.param("fixed", 200, marks=pytest.mark.slow),
        pytest.param("top-up", 100, marks=pytest.mark.slow),
        pytest.param("default design", 30, marks=pytest.mark.slow),
        pytest.param("new arms", 60, marks=pytest.mark.slow),
        pytest.param("same arms", 60, marks=pytest.mark.slow),
    ],
)
def test_useless_arms_are_kept_no_more_often_than_the_charter_says(judge: Any, policy: str, studies: int) -> None:
    chosen = judge.policies()[policy]
    played = judge.play_studies(chosen.charter, chosen.make_planner, judge.Truth(), studies, seed=1)

    assert sum(bool(each.kept) for each in played) <= most_by_chance(chosen.charter.rule.alpha, studies)


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("most", "studies"),
    [(4, 60), *(pytest.param(most, 2000, marks=pytest.mark.slow) for most in (1, 2, 3, 4))],
)
def test_searches_that_confirm_several_arms_keep_useless_ones_no_more_often(
    judge: Any, most: int, studies: int
) -> None:
    played = judge.play_searches(judge.SearchTruth(), most, studies, seed=most)

    kept = sum(bool(each.kept) for each in played)
    assert max(len(each.confirmed) for each in played) == most
    assert kept <= most_by_chance(0.05, studies)
    assert studies < 2000 or judge.upper_bound(kept, studies) <= 0.05


@pytest.mark.timeout(400)
@FEW_OR_MANY
def test_better_arm_is_found_with_the_runs_that_the_design_chose(judge: Any, studies: int) -> None:
    chosen = judge.policies()["fixed"]
    played = judge.play_studies(
        chosen.charter, chosen.make_planner, judge.Truth({BETTER: 0.6}, deviation=0.03), studies, seed=2
    )

    missed = sum(BETTER not in each.kept for each in played)
    assert missed <= most_by_chance(0.2, studies)
    assert all(each.verdicts.keys() == {"lr=0.0001", "lr=0.0003", "lr=0.003", "lr=0.01"} for each in played)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("studies", [pytest.param(120, marks=pytest.mark.slow)])
def test_arm_that_diverges_is_kept_only_where_none_of_its_runs_did(judge: Any, studies: int) -> None:
    chosen = judge.policies()["fixed"]
    truth = judge.Truth({BETTER: 0.8}, failures={BETTER: 0.3})
    played = judge.play_studies(chosen.charter, chosen.make_planner, truth, studies, seed=3)

    # The probability that none of at least six runs diverges is 0.118.
    assert all(each.seeds >= 6 for each in played)
    assert sum(BETTER in each.kept for each in played) <= most_by_chance(0.7**6, studies)


def test_upper_bound_is_that_of_clopper_and_pearson(judge: Any) -> None:
    assert judge.upper_bound(0, 59) == pytest.approx(0.05, abs=0.001)
    assert judge.upper_bound(5, 5) == 1.0
