"""Whether reward alone can start from a base score, by the upper bound of pass@k and not by its point."""

from __future__ import annotations

import pytest

from swarm.intervals import wilson
from swarm.pass_at_k import pass_at_k, upper_bound
from swarm.program.start import describe_start, find_obstacle

WAYS = ("demonstrations", "partial credit", "easier tasks", "another model")


def obstacle(solved: int, tasks: int, group: int = 8, attempts: int = 1, partial: float = 0.0) -> str | None:
    """The obstacle where so many tasks are solved at each attempt, and all other attempts earn `partial`."""
    outcomes = {str(at): [at < solved] * attempts for at in range(tasks)}
    mean = (solved + partial * (tasks - solved)) / tasks
    stderr = ((mean - partial) * (1 - mean) / tasks) ** 0.5
    high = wilson(mean, tasks)[1]
    return find_obstacle(pass_at_k(outcomes, (1, attempts)), group, mean=mean, high=high, stderr=stderr)


def test_a_model_that_solves_nothing_is_told_so_with_the_ways_on() -> None:
    for found in (obstacle(0, 200), obstacle(0, 50, attempts=16), obstacle(0, 1, attempts=16)):
        assert found is not None and all(way in found for way in WAYS)


def test_nothing_is_said_to_be_near_zero_where_the_interval_is_wide() -> None:
    assert "hardly anything" in (obstacle(0, 200) or "")
    for few in (obstacle(0, 20), obstacle(0, 200, group=64)):
        assert few is not None and "hardly anything" not in few and "too few" in few
    assert "hardly anything" in (obstacle(0, 200, group=64, attempts=64) or "")


@pytest.mark.parametrize("solved", [2, 20, 200])
def test_a_model_that_solves_some_tasks_can_start(solved: int) -> None:
    assert obstacle(solved, 200) is None


def test_partial_credit_that_differs_gives_reward_something_to_learn_from() -> None:
    passes = pass_at_k({str(at): [False] for at in range(200)}, (1,))
    assert find_obstacle(passes, 8, mean=0.3, high=0.35, stderr=0.02) is None
    assert find_obstacle(passes, 8, mean=-0.4, high=-0.3, stderr=0.02) is None
    assert find_obstacle(passes, 8, mean=0.3, high=0.3, stderr=0.0) is not None


def test_the_bound_beyond_the_attempts_holds_for_every_mixture_of_tasks() -> None:
    for rates in ([0.02] * 50, [0.0] * 40 + [0.1] * 10, [0.0] * 49 + [1.0]):
        mean, truth = sum(rates) / 50, sum(1 - (1 - rate) ** 8 for rate in rates) / 50
        (once,) = pass_at_k({str(at): [at < round(50 * mean)] for at in range(50)}, (1,))
        assert once.mean == pytest.approx(mean) and truth <= upper_bound([once], 8) <= 1
    assert upper_bound([], 8) == 1.0


def test_tasks_that_none_of_sixteen_attempts_solved_are_counted() -> None:
    solved = {"a": [False] * 16, "b": [True] + [False] * 15, "c": [False] * 16}
    assert "2 of 3 tasks were solved by none of 16 attempts" in describe_start(pass_at_k(solved, (1, 8, 16)), 8)
    assert "pass@8" in describe_start(pass_at_k({"a": [True]}, (1,)), 8)
