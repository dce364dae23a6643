"""A job that has done all its steps: what its server still does, what a second sync is told, how it goes on."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from tests_support import begin, chat, end, run_batch, wait_for_state, wait_for_step

from swarm import SwarmClient, TrainingComplete, TrainJob
from swarm.errors import BadRequest
from swarm.schemas import EngineState

pytestmark = pytest.mark.timeout(400)

JOB = TrainJob(engine="fake", batch_size=1, num_repeat=2, total_steps=1, drain_timeout_s=1)


def with_steps(total_steps: int | None, job: TrainJob = JOB) -> TrainJob:
    return job.model_copy(update={"total_steps": total_steps})


@contextmanager
def connected(url: str) -> Iterator[tuple[httpx.Client, SwarmClient]]:
    with httpx.Client(base_url=url, timeout=20) as http, SwarmClient(url) as client:
        yield http, client


def finish(http: httpx.Client, job: TrainJob = JOB, name: str = "task") -> None:
    for step in range(http.get("/v1/swarm/status").json()["step"], job.total_steps or 0):
        run_batch(http, tasks=1, repeats=2, name=f"{name}-{step}")
        wait_for_step(http, step + 1)
    wait_for_state(http, "COMPLETE")


@pytest.fixture
def finished(start_server: Any) -> Iterator[tuple[httpx.Client, SwarmClient]]:
    """A server whose job has done its one step."""
    with connected(start_server(JOB).url) as (http, client):
        wait_for_state(http, "ROLLING")
        finish(http)
        yield http, client


def states(http: httpx.Client) -> list[str]:
    events = http.get("/v1/swarm/events", params={"limit": 1000}).json()["events"]
    return [event["detail"]["state"] for event in events if event["kind"] == "engine.state"]


def test_a_finished_job_is_complete_serves_eval_episodes_and_takes_no_train_episodes(finished: Any) -> None:
    http, _ = finished
    status = http.get("/v1/swarm/status").json()
    assert "all 1 steps are done" in status["reason"]
    assert "total_steps" in status["reason"] and "force_restart" in status["reason"]
    refusal = http.post("/v1/swarm/episodes/begin", json={})
    assert (refusal.status_code, refusal.json()["error"]["code"]) == (409, "training_complete")
    assert end(http, begin(http, episode_type="eval"), task_id="held-out", reward=1.0, call=True)["state"] == (
        "completed"
    )
    assert http.get("/ready").status_code == 200
    assert 'swarm_engine_state{state="COMPLETE"} 1.0' in http.get("/metrics").text


def test_checkpoint_and_load_work_on_a_finished_job(finished: Any) -> None:
    http, client = finished
    assert client.save_checkpoint().step == 1
    assert client.status().state is EngineState.COMPLETE
    assert states(http)[-3:] == ["COMPLETE", "EXPORTING", "COMPLETE"]
    assert client.load_checkpoint(0).state is EngineState.ROLLING
    finish(http, name="again")


def test_a_job_that_ends_at_an_earlier_step_trains_nothing_that_still_waits(start_server: Any) -> None:
    job = TrainJob(engine="fake", batch_size=1, num_repeat=2, total_steps=2, max_staleness=1, drain_timeout_s=1)
    with connected(start_server(job).url) as (http, client):
        wait_for_state(http, "ROLLING")
        run_batch(http, tasks=1, repeats=2, name="first")
        wait_for_step(http, 1)
        ahead = [begin(http, task_id="ahead-0") for _ in range(2)]
        waiting = [begin(http, task_id="waiting-0") for _ in range(2)]
        for episode in waiting:
            chat(http, episode, "sampled at step 1")
        for reward, episode in enumerate(ahead):
            end(http, episode, task_id="ahead-0", reward=float(reward), call=True)
        wait_for_state(http, "COMPLETE")
        for reward, episode in enumerate(waiting):
            end(http, episode, task_id="waiting-0", reward=float(reward))
        with pytest.raises(BadRequest, match="step 0"):
            client.load_checkpoint(0, end=True)
        client.load_checkpoint(1, end=True)
        status = client.status()
        assert (status.state, status.step) == (EngineState.COMPLETE, 1)
        assert client.job().changes[-1].settings == {"total_steps": 1}


def test_syncing_a_finished_job_again_says_that_it_is_done_and_what_to_do(
    finished: Any, caplog: pytest.LogCaptureFixture
) -> None:
    _, client = finished
    with caplog.at_level(logging.WARNING, logger="swarm"):
        status = client.auto_sync_train_config_and_start_engine(JOB)
    assert (status.state, status.step) == (EngineState.COMPLETE, 1)
    [said] = [record.getMessage() for record in caplog.records if record.name.startswith("swarm.client")]
    assert said == f"swarm/default: {status.reason}"
    assert "total_steps" in said and "force_restart=True" in said


@pytest.mark.parametrize("more", [2, None])
def test_more_steps_go_on_from_the_weights_of_a_finished_job(finished: Any, more: int | None) -> None:
    http, client = finished
    status = client.auto_sync_train_config_and_start_engine(with_steps(more))
    assert (status.state, status.step, status.weight_version, status.total_steps) == ("ROLLING", 1, 1, more)
    run_batch(http, tasks=1, repeats=2, name="more")
    assert wait_for_step(http, 2)["weight_version"] == 2
    assert http.get("/v1/swarm/status").json()["state"] == ("ROLLING" if more is None else "COMPLETE")
    assert [batch["step"] for batch in http.get("/v1/swarm/batches").json()["batches"]] == [2, 1]
    [extended] = [event.detail for event in client.past_events() if event.kind == "job.extended"]
    assert extended == {"job_id": 1, "from": 1, "to": more}


def test_more_steps_are_taken_while_the_job_rolls_and_held_episodes_begin(start_server: Any) -> None:
    with connected(start_server(with_steps(2)).url) as (http, client):
        wait_for_state(http, "ROLLING")
        running = begin(http)
        client.auto_sync_train_config_and_start_engine(with_steps(3))
        end(http, running, task_id="kept", reward=0.0, call=True)
        end(http, begin(http), task_id="kept", reward=1.0, call=True)
        wait_for_step(http, 1)
        finish(http, with_steps(3))
        assert http.get("/v1/swarm/status").json()["failures"] == {}


@pytest.mark.parametrize("other", [with_steps(1), JOB.model_copy(update={"lr": 0.5, "total_steps": 9})])
def test_fewer_steps_and_other_settings_are_another_job(start_server: Any, other: TrainJob) -> None:
    with connected(start_server(with_steps(2)).url) as (http, client):
        wait_for_state(http, "ROLLING")
        with pytest.raises(Exception, match="swarm stop --engine-only") as refusal:
            client.auto_sync_train_config_and_start_engine(other)
        assert "swarm/default" in str(refusal.value)
        client.stop_engine()
        assert client.auto_sync_train_config_and_start_engine(other).step == 0


def test_waiting_for_a_step_beyond_the_last_one_ends_at_once(finished: Any) -> None:
    _, client = finished
    with pytest.raises(TrainingComplete, match="step 2"):
        client.wait_until_step(2, timeout=600)


def test_a_chat_of_an_episode_that_outlives_the_last_step_is_answered(start_server: Any) -> None:
    with connected(start_server(JOB).url) as (http, _):
        wait_for_state(http, "ROLLING")
        late = begin(http, episode_type="eval")
        finish(http)
        assert chat(http, late, "Still there?")["choices"]
