"""An engine that has failed is waited for nowhere: every call ends at once, with the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import httpx
import pytest
from tests_support import wait_for_state

from researcher.errors import RunBroken
from researcher.servers.jobs import COMPLETE, RESTING, SERVING, await_state, end_job
from swarm import Credentials, SwarmClient, Task, TrainJob, WorkflowOutput, run_episodes_until_all_complete
from swarm.client import evaluate, follow_evaluations
from swarm.client.episode import log_failed_abort
from swarm.environments import load_environment
from swarm.errors import EngineFailure, FailedEngine, ProgramFailure, ServerUnreachable
from swarm.program import measure, train
from swarm.program.gates import score_at_rest

pytestmark = pytest.mark.timeout(60)

PATIENCE_S = 3600.0
"""The wait of the client for a server that does not serve: whoever waits for this engine never ends in time."""
BROKEN = TrainJob(engine="local", model="/no/such/model", total_steps=3)
REASON = "no directory /no/such/model"
TASKS = [Task(f"task {number}") for number in range(100)]
EVALUATION: Any = None


def answer(task: Task, credentials: Credentials) -> WorkflowOutput:
    return WorkflowOutput(1.0)


def fail_engine(client: SwarmClient) -> None:
    client.stop_engine()
    with httpx.Client(base_url=client.url, timeout=60) as http:
        http.put("/v1/swarm/job", json={"job": BROKEN.model_dump(mode="json", exclude_defaults=True)})
        http.post("/v1/swarm/engine/start", json={}).raise_for_status()
        wait_for_failure(http)


def wait_for_failure(http: httpx.Client) -> None:
    assert REASON in wait_for_state(http, "FAILED")["reason"]


@pytest.fixture(scope="module")
def client(start_shared_server: Any) -> Iterator[SwarmClient]:
    with SwarmClient(start_shared_server().url, timeout=PATIENCE_S) as client:
        fail_engine(client)
        yield client


WAITS: dict[str, Callable[[SwarmClient], object]] = {
    "begin": lambda client: client.begin_episode(wait_timeout=PATIENCE_S),
    "claim of an evaluation": lambda client: client.claim_evaluation(wait_s=60),
    "evaluator": lambda client: follow_evaluations(client, lambda due: EVALUATION),
    "score": lambda client: evaluate(client, TASKS, answer, wait_timeout=PATIENCE_S),
    "checkpoint": lambda client: client.save_checkpoint(),
    "step": lambda client: client.wait_until_step(1, PATIENCE_S),
    "job": lambda client: client.auto_sync_train_config_and_start_engine(BROKEN, boot_timeout=PATIENCE_S),
    "rest": lambda client: score_at_rest(client, lambda: EVALUATION),
    "change of the job": lambda client: client.change_job({"lr": 1e-3}),
}


@pytest.mark.parametrize("what", WAITS)
def test_call_of_a_client_ends_at_once_with_the_reason(client: SwarmClient, what: str) -> None:
    with pytest.raises(EngineFailure, match=REASON):
        WAITS[what](client)


def test_training_and_score_of_a_program_end_at_once_with_the_reason(client: SwarmClient) -> None:
    with closing(load_environment("reverse")) as environment:
        with pytest.raises((EngineFailure, ProgramFailure), match=REASON):
            train(client, environment, BROKEN)
        with pytest.raises(FailedEngine, match=REASON):
            measure(client, environment, wait_timeout=PATIENCE_S)


def test_every_episode_of_a_run_ends_at_once(client: SwarmClient) -> None:
    runs = run_episodes_until_all_complete(TASKS, answer, client=client)
    assert len(runs.failures) == len(TASKS)
    assert all(isinstance(failure.error, FailedEngine) and failure.attempts == 1 for failure in runs.failures)


@pytest.mark.parametrize("states", [SERVING, RESTING, COMPLETE])
def test_wait_of_a_study_ends_at_once_with_the_reason(client: SwarmClient, states: tuple[str, ...]) -> None:
    with pytest.raises(RunBroken, match=REASON):
        await_state(client, states, PATIENCE_S, lambda: None)
    with pytest.raises(RunBroken, match=REASON):
        end_job(client, None, 0, wait_s=PATIENCE_S, check_stop=lambda: None)


def test_library_of_an_agent_is_told_not_to_call_again(client: SwarmClient) -> None:
    for route in ("chat/completions", "messages", "responses", "completions"):
        reply = httpx.post(f"{client.url}/v1/{route}", json={}, headers={"authorization": "Bearer key"})
        assert reply.status_code >= 500 and reply.headers["x-should-retry"] == "false"
        assert REASON in reply.json()["error"]["message"]


def test_score_ends_as_soon_as_the_engine_fails(start_server: Any) -> None:
    attempts: list[str] = []
    job = TrainJob(engine="fake", total_steps=3)
    with SwarmClient(start_server(job).url, timeout=PATIENCE_S) as client:

        def attempt(task: Task, credentials: Credentials) -> WorkflowOutput:
            attempts.append(task.task_id)
            fail_engine(client)
            raise ConnectionError("the model did not answer")

        with pytest.raises(FailedEngine, match=REASON):
            evaluate(client, TASKS, attempt, max_workers=1, wait_timeout=PATIENCE_S)
    assert len(attempts) == 1


def test_episode_of_a_failed_engine_has_ended_with_it_and_nobody_is_warned(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log_failed_abort("ep-1", FailedEngine("the engine has failed"))
    assert caplog.text == ""
    log_failed_abort("ep-1", ServerUnreachable("no answer"))
    assert "ep-1 was not aborted" in caplog.text
