"""A fault of many attempts is logged once with its traceback, and counted."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from swarm.client import run_episodes_until_all_complete
from swarm.client.fault_log import FaultLog
from swarm.errors import EnvironmentFailure, ProgramFailure


def look_up(number: int) -> int:
    return {}[f"task-{number}"]


def divide(number: int) -> float:
    return number / 0


def blamed(number: int) -> None:
    try:
        look_up(number)
    except KeyError as error:
        raise ProgramFailure(f"the program raised KeyError: {error}") from error


def graded(number: int) -> None:
    kind = "KeyError" if number % 2 else "ValueError"
    raise EnvironmentFailure(f"own: grading task own/{number}a{number} failed: {kind}: 'word {number}'")


def messages(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize(
    ("fail", "kinds"), [(look_up, 1), (blamed, 1), (graded, 2)], ids=["an agent", "its blame", "a grader"]
)
def test_one_fault_of_many_attempts_is_one_traceback_with_a_count(
    fail: Callable[[int], object], kinds: int, caplog: pytest.LogCaptureFixture
) -> None:
    runs = run_episodes_until_all_complete(list(range(40)), fail, max_workers=4)
    assert len(runs.failures) == 40
    warned = messages(caplog)
    firsts, counts = warned[:kinds], warned[kinds:]
    assert len(counts) == kinds and all(f"{40 // kinds} attempts" in each.getMessage() for each in counts)
    assert all(bool(each.exc_info) == (fail is not graded) for each in firsts)


def test_different_faults_are_told_apart_and_a_single_one_has_no_count(caplog: pytest.LogCaptureFixture) -> None:
    run_episodes_until_all_complete([0, 1], lambda number: (look_up, divide)[number](number))
    assert [bool(each.exc_info) for each in messages(caplog)] == [True, True]


def test_the_faults_of_several_runs_can_be_counted_together(caplog: pytest.LogCaptureFixture) -> None:
    with FaultLog() as faults:
        for _ in range(3):
            run_episodes_until_all_complete(list(range(5)), look_up, faults=faults)
        assert len(messages(caplog)) == 1
    count = messages(caplog)[-1].getMessage()
    assert len(messages(caplog)) == 2 and "15 attempts" in count and "KeyError" in count
