"""What clients hear while no engine runs: an answer they got stays theirs, what is over is over, the rest must wait."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests_support import begin, end, wait_for_state

from swarm.job import TrainJob

JOB = TrainJob(engine="fake", batch_size=2, num_repeat=2)


@pytest.fixture
def stopped(start_server: Any) -> Iterator[tuple[httpx.Client, dict[str, Any], dict[str, Any]]]:
    """A server whose engine was stopped, an episode that had ended and one that was running."""
    with httpx.Client(base_url=start_server(JOB).url, timeout=60) as http:
        wait_for_state(http, "ROLLING")
        ended, running = begin(http), begin(http)
        end(http, ended, task_id="t", reward=1.0, call=True)
        http.post("/v1/swarm/engine/stop").raise_for_status()
        yield http, ended, running


def post(http: httpx.Client, episode: dict[str, Any], what: str, **body: Any) -> tuple[int, dict[str, Any]]:
    reply = http.post(f"/v1/swarm/episodes/{episode['episode_id']}/{what}", json=body)
    return reply.status_code, reply.json()


def test_an_end_that_was_acknowledged_is_answered_again(stopped: Any) -> None:
    http, ended, _ = stopped
    status, answer = post(http, ended, "end", task_id="t", reward=1.0)
    assert (status, answer["state"], answer["replayed"]) == (200, "completed", True)
    status, answer = post(http, ended, "end", task_id="t", reward=0.0)
    assert (status, answer["error"]["code"]) == (409, "idempotency_mismatch")


def test_an_episode_that_was_running_is_over(stopped: Any) -> None:
    http, _, running = stopped
    for what, body in (("end", {"task_id": "t", "reward": 1.0}), ("heartbeat", {})):
        status, answer = post(http, running, what, **body)
        assert (status, answer["error"]["code"]) == (409, "episode_ended")
    assert post(http, running, "abort")[1]["state"] == "aborted"


def test_an_episode_that_ended_cannot_be_aborted(stopped: Any) -> None:
    http, ended, _ = stopped
    status, answer = post(http, ended, "abort")
    assert (status, answer["error"]["code"]) == (409, "episode_ended")
    assert http.get(f"/v1/swarm/episodes/{ended['episode_id']}").json()["episode"]["state"] == "completed"


def test_what_needs_an_engine_says_when_to_come_back(stopped: Any) -> None:
    http, ended, _ = stopped
    replies = [
        http.post("/v1/swarm/episodes/begin", json={}),
        http.post("/v1/swarm/heartbeat", json={"client_id": "c", "episode_ids": []}),
        http.post("/v1/swarm/batch/agree", json={"client_id": "c"}),
        http.get("/v1/swarm/batch/policy"),
        http.post(f"/v1/swarm/episodes/{ended['episode_id']}/reward", json={"reward": 0, "reason": "r"}),
        http.post("/v1/swarm/engine/checkpoint"),
        http.post("/v1/swarm/engine/load", json={"step": 0}),
        http.get("/v1/models", headers={"authorization": f"Bearer {ended['api_key']}"}),
    ]
    for reply in replies:
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "engine_not_ready"), reply.text
        assert 1 <= int(reply.headers["retry-after"]) <= 120


def test_an_unknown_episode_is_not_found(stopped: Any) -> None:
    http = stopped[0]
    for what, body in (("end", {"task_id": "t", "reward": 1.0}), ("heartbeat", {}), ("abort", {})):
        status, answer = post(http, {"episode_id": "ep-unknown"}, what, **body)
        assert (status, answer["error"]["code"]) == (404, "not_found")
