"""Requests begin together where others are about to come, and at once where none are."""

from __future__ import annotations

import pytest

from swarm.backends.local.pacing import (
    LONGEST_WAIT_S,
    MOST_AWAITED,
    SHORTEST_SILENCE_S,
    WINDOW_S,
    Gathering,
)


class Time:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def gathering(time: Time) -> Gathering:
    return Gathering(time)


def seen_together(gathering: Gathering, count: int) -> None:
    for present in range(1, count + 1):
        gathering.arrived(present)
    gathering.begun()


def test_a_request_without_company_begins_at_once(gathering: Gathering, time: Time) -> None:
    for _ in range(3):
        gathering.arrived(present=1)
        assert gathering.wait_s(waiting=1) == 0
        gathering.begun()
        time.now += 0.2


def test_half_of_those_that_were_there_at_once_are_awaited(gathering: Gathering) -> None:
    seen_together(gathering, 12)
    for waiting in range(1, 6):
        gathering.arrived(present=waiting)
        assert gathering.wait_s(waiting) > 0
    gathering.arrived(present=6)
    assert gathering.wait_s(6) == 0


def test_no_more_are_awaited_than_make_a_pass_cheaper(gathering: Gathering) -> None:
    seen_together(gathering, 10 * MOST_AWAITED)
    for waiting in range(1, MOST_AWAITED):
        gathering.arrived(present=waiting)
        assert gathering.wait_s(waiting) > 0
    gathering.arrived(present=MOST_AWAITED)
    assert gathering.wait_s(MOST_AWAITED) == 0


def test_silence_ends_the_wait(gathering: Gathering, time: Time) -> None:
    seen_together(gathering, 12)
    gathering.arrived(present=1)
    assert gathering.wait_s(1) == pytest.approx(SHORTEST_SILENCE_S)
    time.now += SHORTEST_SILENCE_S + 1e-6
    assert gathering.wait_s(1) == 0


def test_where_they_come_slowly_silence_begins_later(gathering: Gathering, time: Time) -> None:
    seen_together(gathering, 12)
    for _ in range(50):
        gathering.arrived(present=1)
        time.now += SHORTEST_SILENCE_S / 2
        gathering.arrived(present=2)
        gathering.begun()
    gathering.arrived(present=1)
    time.now += SHORTEST_SILENCE_S
    assert gathering.wait_s(1) > 0
    time.now += SHORTEST_SILENCE_S
    assert gathering.wait_s(1) == 0


def test_nobody_waits_longer_than_the_longest_hold_however_many_come(gathering: Gathering, time: Time) -> None:
    seen_together(gathering, 2 * MOST_AWAITED)
    began, waiting = time.now, 0
    while not waiting or gathering.wait_s(waiting):
        waiting += 1
        gathering.arrived(present=waiting)
        assert gathering.wait_s(waiting) <= LONGEST_WAIT_S
        time.now += SHORTEST_SILENCE_S / 2
    assert time.now - began <= LONGEST_WAIT_S + SHORTEST_SILENCE_S


def test_those_who_are_left_over_for_want_of_room_hold_nobody(gathering: Gathering) -> None:
    seen_together(gathering, 12)
    gathering.arrived(present=13)
    assert gathering.wait_s(waiting=2) == 0


def test_a_crowd_is_forgotten(gathering: Gathering, time: Time) -> None:
    seen_together(gathering, 12)
    time.now += 2 * WINDOW_S
    gathering.arrived(present=1)
    assert gathering.wait_s(1) == 0


def test_a_crowd_is_remembered_through_a_training_step(gathering: Gathering, time: Time) -> None:
    seen_together(gathering, 12)
    time.now += 0.9 * WINDOW_S
    gathering.arrived(present=1)
    gathering.begun()
    time.now += 0.9 * WINDOW_S
    gathering.arrived(present=1)
    assert gathering.wait_s(1) > 0
