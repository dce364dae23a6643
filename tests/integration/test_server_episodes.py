"""Episodes and batches over real HTTP on the fake engine: the contract of the control API, one behaviour per test."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from tests_support import begin, end, run_batch, wait_for_state, wait_for_step, wait_for_waiting_begins

from swarm.job import TrainJob


@pytest.fixture
def job() -> TrainJob:
    return TrainJob(engine="fake", batch_size=2, num_repeat=2, total_steps=3, drain_timeout_s=2)


@pytest.fixture
def http(start_server: Any, job: TrainJob) -> Any:
    server = start_server(job)
    with httpx.Client(base_url=server.url, timeout=60) as client:
        wait_for_state(client, "ROLLING")
        yield client


def test_a_full_batch_trains_and_publishes_the_next_version(http: httpx.Client) -> None:
    run_batch(http, tasks=2, repeats=2)
    status = wait_for_step(http, 1)
    assert status["weight_version"] == 1
    points = http.get("/v1/swarm/metrics").json()["points"]
    assert [point["step"] for point in points] == [1]
    assert points[0]["metrics"]["batch/episodes"] == 4


def test_a_caller_that_hangs_up_while_it_waits_has_no_episode_begun(http: httpx.Client) -> None:
    begun = [begin(http, task_id=f"task-{index // 2}") for index in range(4)]
    with pytest.raises(httpx.ReadTimeout):
        http.post("/v1/swarm/episodes/begin", json={"task_id": "later", "wait_s": 60}, timeout=1)
    wait_for_waiting_begins(http, 0)
    for index, episode in enumerate(begun):
        end(http, episode, task_id=f"task-{index // 2}", reward=float(index % 2), call=True)
    wait_for_step(http, 1)
    assert http.get("/v1/swarm/episodes?state=running").json()["episodes"] == []


def test_a_group_below_min_group_is_dropped_and_counted(start_server: Any) -> None:
    job = TrainJob(engine="fake", batch_size=2, num_repeat=2, stop_rule="enough_episodes", drain_timeout_s=1)
    server = start_server(job)
    with httpx.Client(base_url=server.url, timeout=60) as http:
        wait_for_state(http, "ROLLING")
        for task_id in ("a", "a", "a", "lonely"):
            end(http, begin(http), task_id=task_id, reward=1.0, call=True)
        wait_for_step(http, 1)
        assert http.get("/v1/swarm/status").json()["failures"] == {"group_too_small": 1}
        assert http.get("/v1/swarm/metrics").json()["points"][0]["metrics"]["batch/episodes"] == 3


def test_stopping_the_engine_aborts_what_runs_and_starting_again_goes_on(http: httpx.Client) -> None:
    episode = begin(http)
    http.post("/v1/swarm/engine/stop").raise_for_status()
    assert http.get("/ready").json() == {"ready": True, "state": "OFFLINE", "reason": None}
    assert http.post("/v1/swarm/episodes/begin", json={"wait_s": 0}).status_code == 503
    late = http.post(f"/v1/swarm/episodes/{episode['episode_id']}/end", json={"task_id": "t", "reward": 1})
    assert (late.status_code, late.json()["error"]["code"]) == (409, "episode_ended")
    assert late.headers["x-should-retry"] == "false"
    http.post("/v1/swarm/engine/start").raise_for_status()
    wait_for_state(http, "ROLLING")
    begin(http)
