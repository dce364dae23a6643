"""pass@k against brute force, its interval against simulation, and what --k refuses."""

from __future__ import annotations

import random
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.errors import BadRequest
from swarm.pass_at_k import estimate, pass_at_k, read_ks


@given(st.lists(st.booleans(), min_size=1, max_size=9), st.integers(1, 9))
def test_estimate_is_the_share_of_all_choices_of_k_attempts_with_a_success(solved: list[bool], k: int) -> None:
    k = min(k, len(solved))
    chosen = list(combinations(solved, k))
    assert estimate(len(solved), sum(solved), k) == pytest.approx(sum(map(any, chosen)) / len(chosen))


@given(st.dictionaries(st.text(max_size=3), st.lists(st.booleans(), min_size=1, max_size=8), min_size=1))
def test_pass_at_k_rises_with_k_within_its_interval(solved: dict[str, list[bool]]) -> None:
    least = min(map(len, solved.values()))
    found = pass_at_k(solved, range(1, least + 1))
    means = [each.mean for each in found]
    assert means == sorted(means) and len(found) == least
    assert all(0 <= each.low <= each.mean <= each.high <= 1 for each in found)


def test_estimate_is_unbiased_and_its_interval_covers_the_true_share() -> None:
    drawn = random.Random(1)
    tasks, attempts, k, covered, means = 40, 8, 4, 0, []
    for _ in range(400):
        rates = [drawn.betavariate(0.3, 2) for _ in range(tasks)]
        solved = {str(at): [drawn.random() < rate for _ in range(attempts)] for at, rate in enumerate(rates)}
        (found,) = pass_at_k(solved, (k,))
        truth = sum(1 - (1 - rate) ** k for rate in rates) / tasks
        means.append(found.mean - truth)
        covered += found.low <= truth <= found.high
    assert abs(sum(means) / len(means)) < 0.01
    assert covered >= 0.95 * 400


def test_tasks_with_too_few_attempts_are_left_out_of_a_k() -> None:
    found = pass_at_k({"a": [True, False], "b": [False]}, (1, 2, 3))
    assert [(each.k, each.tasks, each.mean) for each in found] == [(1, 2, 0.25), (2, 1, 1.0)]


def test_no_success_of_sixteen_is_zero_with_an_upper_bound() -> None:
    (found,) = pass_at_k({str(task): [False] * 16 for task in range(50)}, (16,))
    assert found.mean == 0 and 0 < found.high < 0.1


@pytest.mark.parametrize(("text", "numbers"), [("1,4,16", (1, 4, 16)), ("16,4,4", (4, 16)), (" 8 ", (8,))])
def test_numbers_of_attempts_are_read_rising(text: str, numbers: tuple[int, ...]) -> None:
    assert read_ks(text) == numbers


@pytest.mark.parametrize("text", ["", "0", "-1", "1,", "a", "1.5", "257"])
def test_other_numbers_are_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="as in 1,4,16"):
        read_ks(text)
