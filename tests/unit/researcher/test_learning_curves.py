"""How fast a run learned, from the scores that were stored."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from researcher.judge.learning_curves import JudgedNumber, ScoredStep, area_under, lowest_of, spread_of, steps_to

CURVE = (ScoredStep(0, 0.2, 0.03), ScoredStep(10, 0.4, 0.03), ScoredStep(30, 0.8, 0.03))


def test_the_area_weighs_each_score_by_the_steps_that_it_stands_for() -> None:
    area = area_under(CURVE)
    assert area is not None
    assert area.value == pytest.approx((10 * 0.3 + 20 * 0.6) / 30)
    weights = (5 / 30, 15 / 30, 10 / 30)
    assert area.noise == pytest.approx(0.03 * sum(weight**2 for weight in weights))


def test_a_single_score_has_no_area() -> None:
    assert area_under(CURVE[:1]) is None


def test_the_steps_to_a_level_lie_on_the_line_between_two_scores() -> None:
    for level, steps in ((0.3, 5), (0.6, 20), (0.1, 0)):
        reached = steps_to(CURVE, level)
        assert reached is not None and reached.value == pytest.approx(steps)
    assert steps_to(CURVE, 0.9) is None


def test_a_step_is_known_as_well_as_the_score_and_the_slope_say_and_never_worse_than_its_two_scores() -> None:
    steep = steps_to((ScoredStep(0, 0.2, 0.0001), ScoredStep(10, 0.7, 0.0004)), 0.5)
    assert steep is not None and steep.noise == pytest.approx(0.0004 * 20**2)
    flat = steps_to(CURVE, 0.3)
    assert flat is not None and flat.noise == pytest.approx(10**2 / 12)


def test_the_lowest_score_is_that_of_training_and_not_the_one_before() -> None:
    fallen = (ScoredStep(0, 0.1, 0.01), ScoredStep(10, 0.5, 0.02), ScoredStep(20, 0.3, 0.03))
    assert lowest_of(fallen, 1.0) == JudgedNumber(0.3, 0.03)
    assert lowest_of(fallen, -1.0) == JudgedNumber(0.5, 0.02)
    assert lowest_of(fallen[:1], 1.0) is None


def test_the_spread_of_an_arm_is_how_far_its_runs_lie_from_their_median() -> None:
    spread = spread_of([JudgedNumber(value, 0.01) for value in (0.5, 0.9, 0.6)])
    assert [item.value for item in spread] == pytest.approx([0.1, 0.3, 0.0])
    assert [item.noise for item in spread] == pytest.approx([0.01 * (1 - 2 / math.pi)] * 3)


@given(
    st.lists(st.floats(0, 1), min_size=2, max_size=8),
    st.floats(0.01, 1),
)
def test_a_level_is_reached_no_later_than_a_higher_one_and_the_area_lies_between_the_scores(
    means: list[float], level: float
) -> None:
    curve = [ScoredStep(10 * number, mean, 0.0) for number, mean in enumerate(means)]
    area = area_under(curve)
    assert area is not None and min(means) - 1e-9 <= area.value <= max(means) + 1e-9
    lower, higher = steps_to(curve, level / 2), steps_to(curve, level)
    assert higher is None or (lower is not None and lower.value <= higher.value)
