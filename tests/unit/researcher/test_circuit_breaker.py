"""A server that does not answer is left alone, asked again at growing intervals, and used once it answers."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from researcher.servers.server import FIRST_INTERVAL_S, LONGEST_INTERVAL_S, BreakerState, CircuitBreaker


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def breaker(clock: Clock) -> CircuitBreaker:
    return CircuitBreaker(clock=clock)


def test_failed_probes_come_at_growing_intervals_up_to_a_limit(breaker: CircuitBreaker, clock: Clock) -> None:
    assert breaker.fail("no answer") and breaker.state is BreakerState.OPEN
    waited: list[float] = []
    for _ in range(10):
        assert not breaker.begin_probe()
        waited.append(breaker.due_in_s())
        clock.now += breaker.due_in_s()
        assert breaker.begin_probe() and breaker.state is BreakerState.HALF_OPEN
        assert not breaker.fail("still none")

    assert waited[:3] == [FIRST_INTERVAL_S, 2 * FIRST_INTERVAL_S, 4 * FIRST_INTERVAL_S]
    assert waited[-1] == LONGEST_INTERVAL_S
    assert breaker.out_s() == sum(waited) and breaker.reason == "still none"


def test_answer_closes_it_and_the_next_failure_begins_anew(breaker: CircuitBreaker, clock: Clock) -> None:
    breaker.fail("no answer")
    clock.now += FIRST_INTERVAL_S
    breaker.begin_probe()
    breaker.fail("no answer")

    assert breaker.succeed() and breaker.is_closed
    assert not breaker.succeed()
    assert (breaker.out_s(), breaker.due_in_s()) == (0.0, 0.0) and not breaker.begin_probe()

    assert breaker.fail("again")
    assert breaker.due_in_s() == FIRST_INTERVAL_S


def test_what_is_heard_of_an_open_one_does_not_put_its_probe_off(breaker: CircuitBreaker, clock: Clock) -> None:
    breaker.fail("no answer")
    clock.now += FIRST_INTERVAL_S

    assert not breaker.fail("a run met the same")

    assert breaker.begin_probe()
