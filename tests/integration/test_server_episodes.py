"""Episodes and batches over real HTTP on the fake engine: the contract of the control API, one behaviour per test."""

from __future__ import annotations

import time
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


def test_a_batch_waits_until_every_task_has_its_repeats(http: httpx.Client) -> None:
    for reward in (0.0, 1.0, 1.0):
        end(http, begin(http), task_id="only-task", reward=reward, call=True)
    time.sleep(0.3)
    status = http.get("/v1/swarm/status").json()
    assert (status["step"], status["pool"]["tasks"], status["pool"]["episodes"]) == (0, 1, 3)


def test_a_caller_that_hangs_up_while_it_waits_has_no_episode_begun(http: httpx.Client) -> None:
    begun = [begin(http, task_id=f"task-{index // 2}") for index in range(4)]
    with pytest.raises(httpx.ReadTimeout):
        http.post("/v1/swarm/episodes/begin", json={"task_id": "later", "wait_s": 60}, timeout=1)
    wait_for_waiting_begins(http, 0)
    for index, episode in enumerate(begun):
        end(http, episode, task_id=f"task-{index // 2}", reward=float(index % 2), call=True)
    wait_for_step(http, 1)
    assert http.get("/v1/swarm/episodes?state=running").json()["episodes"] == []


def test_another_reward_for_an_ended_episode_is_a_final_conflict(http: httpx.Client) -> None:
    episode = begin(http)
    end(http, episode, task_id="t", reward=1.0, call=True)
    reply = http.post(f"/v1/swarm/episodes/{episode['episode_id']}/end", json={"task_id": "t", "reward": 0.0})
    assert reply.status_code == 409
    assert reply.headers["x-should-retry"] == "false"
    assert reply.json()["error"]["code"] == "idempotency_mismatch"


@pytest.mark.parametrize("reward", ["NaN", "Infinity", "-Infinity", '"high"', "null"])
def test_a_reward_that_is_no_finite_number_is_refused_and_nothing_is_stored(http: httpx.Client, reward: str) -> None:
    episode = begin(http)
    body = f'{{"task_id": "t", "reward": {reward}}}'
    reply = http.post(
        f"/v1/swarm/episodes/{episode['episode_id']}/end",
        content=body,
        headers={"content-type": "application/json"},
    )
    assert reply.status_code == 400
    assert "reward" in reply.json()["error"]["message"]
    assert http.get(f"/v1/swarm/episodes/{episode['episode_id']}").json()["episode"]["state"] == "running"


def test_a_silent_episode_expires_and_its_key_hears_why(http: httpx.Client) -> None:
    episode = begin(http, idle_timeout_s=0.2)
    deadline = time.monotonic() + 60
    while http.get(f"/v1/swarm/episodes/{episode['episode_id']}").json()["episode"]["state"] == "running":
        assert time.monotonic() < deadline
        time.sleep(0.1)
    reply = http.post("/v1/chat/completions", headers=bearer(episode), json={"model": "default", "messages": []})
    assert (reply.status_code, reply.json()["error"]["code"]) == (409, "episode_ended")
    assert "idle_timeout" in reply.json()["error"]["message"]


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


def test_requests_without_a_valid_key_are_unauthorized(http: httpx.Client) -> None:
    for headers in ({}, {"authorization": "Bearer sk-swarm-wrong"}):
        reply = http.get("/v1/models", headers=headers)
        assert (reply.status_code, reply.json()["error"]["code"]) == (401, "unauthorized")


def test_every_response_carries_a_request_id(http: httpx.Client) -> None:
    assert http.get("/health").headers["x-request-id"].startswith("req-")
    assert http.get("/health", headers={"x-request-id": "mine-1"}).headers["x-request-id"] == "mine-1"


def test_malformed_bodies_and_unknown_routes_get_the_error_shape(http: httpx.Client) -> None:
    cases = [
        (http.post("/v1/swarm/episodes/begin", json={"colour": "red"}), 400, "colour"),
        (http.post("/v1/swarm/episodes/begin", content=b"{", headers={"content-type": "application/json"}), 400, ""),
        (http.put("/v1/swarm/job", json={"job": {"batch_size": -1}}), 400, "batch_size"),
        (http.get("/v1/swarm/nothing"), 404, "no route"),
        (http.get("/v1/swarm/episodes/ep-unknown"), 404, "ep-unknown"),
    ]
    for reply, status, fragment in cases:
        assert reply.status_code == status, reply.text
        assert fragment in reply.json()["error"]["message"]


def test_stopping_the_engine_aborts_what_runs_and_starting_again_goes_on(http: httpx.Client) -> None:
    episode = begin(http)
    http.post("/v1/swarm/engine/stop").raise_for_status()
    assert http.get("/ready").json() == {"ready": True, "state": "OFFLINE", "reason": None}
    assert http.post("/v1/swarm/episodes/begin", json={"wait_s": 0}).status_code == 503
    late = http.post(f"/v1/swarm/episodes/{episode['episode_id']}/end", json={"task_id": "t", "reward": 1})
    assert (late.status_code, late.json()["error"]["code"]) == (409, "episode_ended")
    http.post("/v1/swarm/engine/start").raise_for_status()
    wait_for_state(http, "ROLLING")
    begin(http)


def bearer(episode: dict[str, Any]) -> dict[str, str]:
    return {"authorization": f"Bearer {episode['api_key']}"}
