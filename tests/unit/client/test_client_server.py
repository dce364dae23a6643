"""The client against the real server over HTTP, on the fake engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests_support import ask

from swarm.client import AsyncSwarmClient, Credentials, SwarmClient, evaluate, run_episodes_until_all_complete
from swarm.errors import (
    BadRequest,
    EngineNotReady,
    EnvironmentFailure,
    IllegalTransition,
    JobInvalid,
    TrainingComplete,
    Unavailable,
)
from swarm.job import TrainJob
from swarm.schemas import EngineState, EpisodeState
from swarm.types import Task, WorkflowOutput

pytestmark = pytest.mark.anyio

JOB = TrainJob(engine="fake", batch_size=2, num_repeat=2, total_steps=3)
Agent = Callable[[Task, Credentials], WorkflowOutput]
TASKS = [Task(f"say {n}", f"say/{n}") for n in range(2)]


def answer(task: Task, credentials: Credentials) -> WorkflowOutput:
    """An agent that makes one model call by plain HTTP."""
    text = ask(credentials, task.main_query).json()["choices"][0]["message"]["content"] or ""
    return WorkflowOutput(reward=float(len(text) % 2))


@pytest.fixture
def client(server_url: str) -> Any:
    with SwarmClient(server_url, client_id="test", timeout=60) as client:
        yield client


@pytest.fixture
def rolling(client: SwarmClient) -> SwarmClient:
    assert client.auto_sync_train_config_and_start_engine(JOB).state is EngineState.ROLLING
    return client


def train_one_episode(client: SwarmClient, task: Task) -> None:
    with client.open_episode(task) as episode:
        episode.output = answer(task, episode.credentials)


def test_a_whole_job_is_trained_and_then_says_so(rolling: SwarmClient) -> None:
    attempts = [task for _ in range(100) for task in TASKS]
    runs = run_episodes_until_all_complete(attempts, lambda task: train_one_episode(rolling, task), max_workers=8)
    assert runs.training_complete
    assert runs.failures == ()
    status = rolling.wait_until_step(3, timeout=60)
    assert (status.step, status.weight_version) == (3, 3)
    assert [point.step for point in rolling.metrics()] == [1, 2, 3]
    assert [point.step for point in rolling.metrics(after_step=2)] == [3]
    with pytest.raises(TrainingComplete):
        rolling.begin_episode()
    _, credentials = rolling.begin_episode("eval")
    assert credentials.weight_version == 3


def test_starting_the_same_job_again_joins_it_and_another_is_refused(rolling: SwarmClient, server_url: str) -> None:
    with SwarmClient(server_url) as other:
        assert other.auto_sync_train_config_and_start_engine(JOB).state is EngineState.ROLLING
        with pytest.raises(IllegalTransition):
            other.auto_sync_train_config_and_start_engine(JOB.model_copy(update={"lr": 0.5}))
        status = other.auto_sync_train_config_and_start_engine(JOB.model_copy(update={"lr": 0.5}), force_restart=True)
    assert (status.state, status.step) == (EngineState.ROLLING, 0)
    assert rolling.job().job == {"engine": "fake", "batch_size": 2, "num_repeat": 2, "total_steps": 3, "lr": 0.5}


def test_many_clients_start_one_job_at_once(server_url: str) -> None:
    def start() -> EngineState:
        with SwarmClient(server_url, timeout=60) as client:
            return client.auto_sync_train_config_and_start_engine(JOB).state

    with ThreadPoolExecutor(8) as pool:
        states = [future.result(timeout=60) for future in [pool.submit(start) for _ in range(8)]]
    assert set(states) == {EngineState.ROLLING}


def test_bad_job_is_refused_by_field_and_nothing_starts(client: SwarmClient) -> None:
    with pytest.raises(JobInvalid, match="batch_size"):
        client.auto_sync_train_config_and_start_engine({"batch_size": -1})
    assert client.status().state is EngineState.OFFLINE
    assert client.job().job is None


def test_begin_on_a_server_without_a_job_says_what_to_do(client: SwarmClient) -> None:
    with pytest.raises(EngineNotReady, match="start"):
        client.begin_episode(wait_timeout=0.1)


def test_exception_in_an_open_episode_aborts_it_under_its_name(rolling: SwarmClient) -> None:
    with pytest.raises(ZeroDivisionError), rolling.open_episode(TASKS[0]) as episode:
        1 / 0  # noqa: B018
    view = rolling.episode(episode.episode_id).episode
    assert (view.state, view.outcome) == (EpisodeState.ABORTED, "client_error:ZeroDivisionError")


def test_open_episode_left_without_a_result_is_aborted(rolling: SwarmClient) -> None:
    with rolling.open_episode(TASKS[0]) as episode:
        pass
    assert rolling.episode(episode.episode_id).episode.outcome == "no_result"


def test_waiting_for_a_step_ends_with_the_reason(rolling: SwarmClient) -> None:
    with pytest.raises(Unavailable, match="step 1"):
        rolling.wait_until_step(1, timeout=0.3)
    rolling.stop_engine()
    with pytest.raises(EngineNotReady, match="OFFLINE"):
        rolling.wait_until_step(1, timeout=60)


def test_evaluation_scores_every_task_and_trains_nothing(rolling: SwarmClient) -> None:
    result = evaluate(rolling, [*TASKS, TASKS[0]], answer, max_workers=3)
    assert result.n == 3
    assert {task_id: len(rewards) for task_id, rewards in result.rewards.items()} == {"say/0": 2, "say/1": 1}
    assert result.mean == sum(sum(rewards) for rewards in result.rewards.values()) / 3
    assert (result.weight_versions, result.failures) == ((0,), ())
    pool = rolling.status().pool
    assert pool is not None
    assert pool.episodes == 0


def test_attempt_that_the_system_broke_is_made_again_and_never_scored(rolling: SwarmClient) -> None:
    calls: list[str] = []

    def fail_on_the_first(task: Task, credentials: Credentials) -> WorkflowOutput:
        calls.append(task.task_id)
        if task is TASKS[0]:
            raise EnvironmentFailure("the environment\ndied")
        return WorkflowOutput(1.0)

    result = evaluate(rolling, TASKS, fail_on_the_first)
    assert (result.n, result.mean, result.stderr) == (1, 1.0, None)
    assert [(failure.task_id, failure.error) for failure in result.failures] == [
        ("say/0", "EnvironmentFailure: the environment died")
    ]
    assert calls.count("say/0") == 3
    assert len(result.repeats) == 2


@pytest.mark.parametrize("worst", [None, -1.0])
def test_attempt_that_the_agent_broke_is_not_made_again_and_scores_the_worst(
    rolling: SwarmClient, worst: float | None
) -> None:
    calls: list[str] = []

    def fail_on_the_first(task: Task, credentials: Credentials) -> WorkflowOutput:
        calls.append(task.task_id)
        if task is TASKS[0]:
            raise RuntimeError("no idea")
        return WorkflowOutput(1.0)

    result = evaluate(rolling, TASKS, fail_on_the_first, worst=worst)
    assert sorted(calls) == ["say/0", "say/1"] and result.repeats == ()
    told = [(failure.task_id, failure.error) for failure in (*result.broken, *result.failures)]
    assert told == [("say/0", "RuntimeError: no idea")]
    assert (result.mean, len(result.broken)) == ((1.0, 0) if worst is None else (0.0, 1))


def test_result_that_the_server_refuses_scores_the_worst_and_tells_its_cost(rolling: SwarmClient) -> None:
    def say_too_much(task: Task, credentials: Credentials) -> WorkflowOutput:
        answer(task, credentials)
        return WorkflowOutput(1.0, replies=("a",) * 10_001)

    result = evaluate(rolling, TASKS[:1], say_too_much, worst=-1.0)
    assert (result.n, result.mean, result.failures, result.repeats) == (1, -1.0, (), ())
    assert "replies" in result.broken[0].error
    assert result.receipts[0].usage.calls == 1
    scored = rolling.episode(result.episode_ids[0]).episode
    assert (scored.state, scored.reward, scored.turns) == (EpisodeState.COMPLETED, -1.0, 0)


def test_evaluation_of_nothing_is_refused(rolling: SwarmClient) -> None:
    with pytest.raises(BadRequest):
        evaluate(rolling, [], answer)


async def test_async_client_does_the_same(server_url: str) -> None:
    async with AsyncSwarmClient(server_url, timeout=60) as client:
        await client.auto_sync_train_config_and_start_engine(JOB)
        async with client.open_episode(TASKS[0]) as episode:
            episode.output = await asyncio.to_thread(answer, TASKS[0], episode.credentials)
        with pytest.raises(ZeroDivisionError):
            async with client.open_episode(TASKS[1]) as broken:
                1 / 0  # noqa: B018
        assert episode.receipt is not None
        assert len((await client.episode(episode.episode_id)).turns) == 1
        assert (await client.episode(broken.episode_id)).episode.state == "aborted"
