"""The runner: every task once, failures cost only their own task, the last step ends the run."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import httpx
import pytest

from swarm.client import Credentials, SwarmClient, run_episodes_until_all_complete
from swarm.client import runner as rollout
from swarm.client.runner import MAX_ATTEMPTS, is_transient
from swarm.errors import BadRequest, EngineNotReady, EpisodeEnded, RolloutPaused, ServerUnreachable, TrainingComplete
from swarm.types import Task, WorkflowOutput


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


def test_results_are_used_as_the_list_of_what_the_function_returned() -> None:
    runs = run_episodes_until_all_complete([4, 2, 0, 8], lambda task: 8 // task, max_workers=2)
    assert runs == [2, 4, None, 1]
    assert runs != [2, 4, None]
    assert (len(runs), runs[0], runs[-1], runs[1:3], next(reversed(runs))) == (4, 2, 1, [4, None], 1)
    assert sum(result or 0 for result in runs) == 7
    assert None in runs
    assert len(runs.failures) == 1


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
    first_ten = threading.Semaphore(0)
    are_done = threading.Event()

    def attempt(task: int) -> int:
        with lock:
            calls.append(task)
        if task >= 10:
            # A thread may get its turn late: the first ten are under way before training is complete.
            assert are_done.wait(60)
            raise TrainingComplete("all steps done")
        first_ten.release()
        if task == 9:
            assert all(first_ten.acquire(timeout=60) for _ in range(10))
            are_done.set()
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
        run_episodes_until_all_complete(range(100_000), attempt, max_workers=2)
    assert len(calls) < 10_000


def test_an_interrupt_while_threads_are_started_stops_those_that_were() -> None:
    sent = threading.Event()

    def work(_: int) -> None:
        if not sent.is_set():
            sent.set()
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)

    with pytest.raises(KeyboardInterrupt):
        run_episodes_until_all_complete(range(100_000), work, max_workers=500)
    deadline = time.monotonic() + 60
    while any(thread.name.startswith("episode-") for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_no_tasks_and_no_workers() -> None:
    assert run_episodes_until_all_complete([], str).results == ()
    with pytest.raises(BadRequest, match="max_workers"):
        run_episodes_until_all_complete([1], str, max_workers=0)


def calls_of(server: Any, name: str) -> list[Any]:
    return [heard for heard in server.heard if heard.path.endswith(name)]


def test_every_task_is_attempted_num_repeat_times_in_a_row() -> None:
    runs = run_episodes_until_all_complete(["a", "b"], str.upper, max_workers=1, num_repeat=3)
    assert runs.results == ("A", "A", "A", "B", "B", "B")
    with pytest.raises(BadRequest, match="num_repeat"):
        run_episodes_until_all_complete(["a"], str.upper, num_repeat=0)


def test_with_a_client_each_attempt_is_an_episode_of_its_task_and_source(swarm_double: Any) -> None:
    tasks = [Task("2+2?", "sum/1", data_source="math"), Task("say x", "say/1", data_source="talk")]

    def agent(task: Task, credentials: Credentials) -> WorkflowOutput:
        if task.task_id == "say/1":
            raise ZeroDivisionError(credentials.episode_id)
        return WorkflowOutput(0.5)

    with SwarmClient(swarm_double.url) as client:
        runs = run_episodes_until_all_complete(tasks, agent, max_workers=1, client=client, num_repeat=2)
    assert runs.results == (WorkflowOutput(0.5), WorkflowOutput(0.5), None, None)
    assert [failure.position for failure in runs.failures] == [2, 3]
    begun = [(heard.body["task_id"], heard.body["data_source"]) for heard in calls_of(swarm_double, "/begin")]
    assert begun == [("sum/1", "math")] * 2 + [("say/1", "talk")] * 2
    assert [heard.body["task_id"] for heard in calls_of(swarm_double, "/end")] == ["sum/1"] * 2
    aborted = [(heard.body["reason"], heard.body["final"]) for heard in calls_of(swarm_double, "/abort")]
    assert aborted == [("client_error:ZeroDivisionError", True)] * 2


def test_an_episode_begun_without_a_name_is_of_the_task_at_hand(swarm_double: Any) -> None:
    with SwarmClient(swarm_double.url) as client:

        def attempt(task: Task) -> None:
            episode_id, _ = client.begin_episode()
            client.end_episode(task, episode_id, WorkflowOutput(1.0))
            client.begin_episode(task_id="another", data_source="elsewhere")

        run_episodes_until_all_complete([Task("2+2?", "sum/1", data_source="math")], attempt)
        client.begin_episode()
    begun = [(heard.body["task_id"], heard.body["data_source"]) for heard in calls_of(swarm_double, "/begin")]
    assert begun == [("sum/1", "math"), ("another", "elsewhere"), (None, "default")]


def test_the_server_hears_of_attempts_that_will_not_be_made_again(swarm_double: Any, quick: None) -> None:
    """Once each, and only where nothing was ended: the group then does not wait for them."""
    calls: list[int] = []

    with SwarmClient(swarm_double.url) as client:

        def attempt(number: int) -> None:
            calls.append(number)
            episode_id, _ = client.begin_episode()
            client.abort_episode(episode_id, "the function's own")
            if number == 0:
                raise ConnectionError("mended next time") if calls.count(0) == 1 else ValueError("a bug")
            if number == 1:
                episode_id, _ = client.begin_episode()
                client.end_episode(Task("q", "t"), episode_id, WorkflowOutput(1.0))

        run_episodes_until_all_complete([0, 1, 2], attempt, max_workers=1)
    final = [heard.path.split("/")[4] for heard in calls_of(swarm_double, "/abort") if heard.body["final"]]
    assert final == ["e1", "e4"]


def test_waiting_for_a_place_is_no_attempt(quick: None) -> None:
    calls: list[int] = []

    def attempt(task: int) -> str:
        calls.append(task)
        if len(calls) <= 2 * MAX_ATTEMPTS:
            raise RolloutPaused("this batch has all its groups: try again")
        return "done"

    assert run_episodes_until_all_complete([1], attempt) == ["done"]


def test_an_episode_left_open_by_a_function_that_raised_is_aborted(swarm_double: Any, quick: None) -> None:
    with SwarmClient(swarm_double.url) as client:

        def attempt(task: Task) -> None:
            ended, _ = client.begin_episode()
            client.end_episode(task, ended, WorkflowOutput(1.0))
            client.begin_episode()
            if len(calls_of(swarm_double, "/begin")) < 4:
                raise ConnectionError("sandbox gone")
            raise ValueError("a bug")

        runs = run_episodes_until_all_complete([Task("q", "t")], attempt)
        assert [failure.attempts for failure in runs.failures] == [2]
    # One result of the attempt counts already: its repeat is not given up.
    assert [heard.body["final"] for heard in calls_of(swarm_double, "/abort")] == [False, False]
    aborted = [(heard.path.split("/")[4], heard.body["reason"]) for heard in calls_of(swarm_double, "/abort")]
    assert aborted == [("e1", "client_error:ConnectionError"), ("e3", "client_error:ValueError")]


def test_an_interrupt_aborts_what_is_open_and_does_not_wait_for_an_agent_that_hangs(
    swarm_double: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollout, "INTERRUPT_GRACE_S", 0.3)
    hangs, may_go = threading.Event(), threading.Event()
    late: list[BaseException] = []
    with SwarmClient(swarm_double.url) as client:

        def attempt(task: int) -> None:
            if task:
                hangs.wait(10)
                raise KeyboardInterrupt
            client.begin_episode()
            hangs.set()
            may_go.wait()
            try:
                client.begin_episode()
            except EpisodeEnded as error:
                late.append(error)
                raise

        # The thread that hangs does so until the run is over.
        with pytest.raises(KeyboardInterrupt):
            run_episodes_until_all_complete(range(100), attempt, max_workers=2)
        assert [heard.body["reason"] for heard in calls_of(swarm_double, "/abort")] == ["client_interrupted"]
        may_go.set()
        for thread in threading.enumerate():
            if thread.name.startswith("episode-"):
                thread.join(10)
        assert len(late) == 1
        # The one that began too late was aborted as well, and no task after it was begun.
        assert len(calls_of(swarm_double, "/abort")) == len(calls_of(swarm_double, "/begin")) == 2


def test_wrapped_failures_of_sdks_are_recognized() -> None:
    class StatusError(Exception):
        def __init__(self, status_code: int) -> None:
            self.status_code = status_code

    wrapped = RuntimeError("Connection error.")
    wrapped.__cause__ = httpx.ConnectError("refused")
    assert is_transient(wrapped)
    assert is_transient(StatusError(503))
    response = httpx.Response(409, request=httpx.Request("POST", "http://x"))
    assert is_transient(httpx.HTTPStatusError("ended", request=response.request, response=response))
    assert is_transient(EpisodeEnded("expired"))
    assert not is_transient(StatusError(400))
    assert not is_transient(ValueError("a bug"))
