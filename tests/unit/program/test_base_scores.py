"""The base score: its interval, and what is said of it."""

from __future__ import annotations

import math

import pytest

from swarm.client.intervals import interval, interval_on_record
from swarm.environments.environment_check import CheckSeverity
from swarm.program.base_score import BaseScore, judge


def scored(*rewards: float, failures: int = 0) -> BaseScore:
    low, high = interval(rewards)
    mean = sum(rewards) / len(rewards) if rewards else 0.0
    return BaseScore(rewards, mean, low, high, failures, "KeyError" if failures else None, 1.0)


@pytest.mark.parametrize(("successes", "number"), [(0, 64), (64, 64), (32, 64), (1, 10), (1, 1)])
def test_of_successes_and_failures_the_interval_is_wilsons(successes: int, number: int) -> None:
    from scipy.stats import binomtest

    rewards = [1.0] * successes + [0.0] * (number - successes)
    reference = binomtest(successes, number).proportion_ci(method="wilson")
    assert interval(rewards) == pytest.approx((reference.low, reference.high), abs=1e-4)


def test_of_other_grades_the_interval_is_normal() -> None:
    assert interval([0.2, 0.4, 0.6]) == pytest.approx(
        (0.4 - 1.96 * 0.2 / math.sqrt(3), 0.4 + 1.96 * 0.2 / math.sqrt(3))
    )
    assert interval([0.5]) == (-math.inf, math.inf)
    assert scored(0.5).figures()["low"] is None


def test_of_a_score_on_record_the_interval_is_wilsons_if_its_rewards_were_0_and_1() -> None:
    assert interval_on_record(0.25, 0.1, 4, 16) == pytest.approx(interval([1.0] * 4 + [0.0] * 12))
    assert interval_on_record(0.4, 0.2 / math.sqrt(3), 0, 3) == pytest.approx(interval([0.2, 0.4, 0.6]))
    assert interval_on_record(0.5, None, 0, 1) == (-math.inf, math.inf)


@pytest.mark.parametrize(
    ("score", "severity"),
    [
        (scored(*[0.0] * 64), CheckSeverity.FAIL),
        (scored(*[1.0], *[0.0] * 999), CheckSeverity.FAIL),
        (scored(*[1.0] * 2, *[0.0] * 62), CheckSeverity.OK),
        (scored(*[1.0] * 60, *[0.0] * 4), CheckSeverity.OK),
        (scored(*[1.0] * 100), CheckSeverity.WARN),
        (scored(*[-1.0] * 60, *[0.5] * 4), CheckSeverity.OK),
        (scored(*[-1.0] * 60, *[-0.5] * 4), CheckSeverity.FAIL),
        (scored(*[1.0, 0.0] * 32, failures=3), CheckSeverity.WARN),
        (scored(failures=3), CheckSeverity.FAIL),
    ],
)
def test_a_score_without_room_to_learn_is_found(score: BaseScore, severity: CheckSeverity) -> None:
    assert judge(score).severity is severity
