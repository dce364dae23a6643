"""The runner: every task once, failures cost only their own task, the last step ends the run."""

from __future__ import annotations

import threading
import time

import httpx
import pytest

from swarm.client import rollout, run_episodes_until_all_complete
from swarm.client.rollout import MAX_ATTEMPTS, is_transient
from swarm.errors import BadRequest, EngineNotReady, EpisodeEnded, ServerUnreachable, TrainingComplete


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout, "FIRST_BACKOFF_S", 0.001)


def test_results_come_in_the_order_of_the_tasks() -> None:
    def attempt(task: int) -> int:
        time.sleep(0.01 * (5 - task))
        return task * task

    runs = run_episodes_until_all_complete(range(5), attempt, max_workers=5)
    assert runs.results == (0, 1, 4, 9, 16)
    assert (runs.failures, runs.training_complete) == ((), False)


def test_failing_function_costs_only_its_own_task() -> None:
    calls: list[int] = []

    def attempt(task: int) -> int:
        calls.append(task)
        return 1 // task

    runs = run_episodes_until_all_complete([1, 0, 1], attempt, max_workers=1)
    assert runs.results == (1, None, 1)
    (failure,) = runs.failures
    assert (failure.position, failure.attempts) == (1, 1)
    assert isinstance(failure.error, ZeroDivisionError)
    assert calls == [1, 0, 1]


def test_failure_of_the_system_is_tried_again_a_bounded_number_of_times(quick: None) -> None:
    calls: list[str] = []

    def attempt(task: str) -> str:
        calls.append(task)
        if task == "down":
            raise ServerUnreachable("gone")
        if calls.count(task) < 3:
            raise EngineNotReady("booting")
        return "done"

    runs = run_episodes_until_all_complete(["down", "slow"], attempt)
    assert runs.results == (None, "done")
    assert [(failure.position, failure.attempts) for failure in runs.failures] == [(0, MAX_ATTEMPTS)]
    assert (calls.count("down"), calls.count("slow")) == (MAX_ATTEMPTS, 3)


def test_without_auto_retry_every_function_is_called_once() -> None:
    def attempt(task: int) -> None:
        raise ServerUnreachable("gone")

    runs = run_episodes_until_all_complete([1], attempt, auto_retry=False)
    assert [failure.attempts for failure in runs.failures] == [1]


def test_training_complete_ends_the_run_early_and_is_no_failure() -> None:
    calls: list[int] = []
    lock = threading.Lock()

    def attempt(task: int) -> int:
        with lock:
            calls.append(task)
        if task >= 10:
            raise TrainingComplete("all steps done")
        return task

    runs = run_episodes_until_all_complete(range(1000), attempt, max_workers=4)
    assert runs.training_complete
    assert runs.failures == ()
    assert runs.results[:10] == tuple(range(10))
    assert set(runs.results[10:]) == {None}
    assert len(calls) < 50


def test_interrupt_stops_the_run_and_is_raised() -> None:
    calls: list[int] = []

    def attempt(task: int) -> None:
        calls.append(task)
        if task == 2:
            raise KeyboardInterrupt
        time.sleep(0.01)

    with pytest.raises(KeyboardInterrupt):
        run_episodes_until_all_complete(range(1000), attempt, max_workers=2)
    assert len(calls) < 100


def test_no_tasks_and_no_workers() -> None:
    assert run_episodes_until_all_complete([], str).results == ()
    with pytest.raises(BadRequest, match="max_workers"):
        run_episodes_until_all_complete([1], str, max_workers=0)


def test_wrapped_failures_of_sdks_are_recognized() -> None:
    class StatusError(Exception):
        def __init__(self, status_code: int) -> None:
            self.status_code = status_code

    wrapped = RuntimeError("Connection error.")
    wrapped.__cause__ = httpx.ConnectError("refused")
    assert is_transient(wrapped)
    assert is_transient(StatusError(503))
    assert is_transient(EpisodeEnded("expired"))
    assert not is_transient(StatusError(400))
    assert not is_transient(ValueError("a bug"))
