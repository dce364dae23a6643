"""Episodes and batches over real HTTP on the fake engine: the contract of the control API, one behaviour per test."""

from __future__ import annotations

import time
from typing import Any

import httpx
import pytest
from tests_support import begin, chat, end, run_batch, wait_for_state, wait_for_step, wait_for_waiting_begins

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


def test_an_ended_episode_is_recorded_token_by_token(http: httpx.Client) -> None:
    episode = begin(http)
    reply = chat(http, episode, "Hello", return_token_ids=True)
    end(http, episode, task_id="t", reward=0.5)
    detail = http.get(f"/v1/swarm/episodes/{episode['episode_id']}").json()
    assert detail["turns"][0]["output_ids"] == reply["choices"][0]["token_ids"]
    assert detail["turns"][0]["prompt_ids"] == reply["prompt_token_ids"]
    [sample] = detail["samples"]
    trained = [token for token, mask in zip(sample["token_ids"], sample["loss_mask"], strict=True) if mask]
    assert trained == detail["turns"][0]["output_ids"]


def test_a_second_turn_extends_the_exact_tokens_of_the_first(http: httpx.Client) -> None:
    episode = begin(http)
    first = chat(http, episode, "Hello")
    messages = [
        {"role": "user", "content": "Hello"},
        first["choices"][0]["message"],
        {"role": "user", "content": "again"},
    ]
    chat(http, episode, messages)
    end(http, episode, task_id="t", reward=1)
    detail = http.get(f"/v1/swarm/episodes/{episode['episode_id']}").json()
    one, two = detail["turns"]
    assert two["parent"] == 0
    history = one["prompt_ids"] + one["output_ids"]
    assert two["prompt_ids"][: len(history)] == history
    assert len(detail["samples"]) == 1


def test_the_same_end_twice_gives_the_same_answer_and_counts_once(http: httpx.Client) -> None:
    episode = begin(http)
    first = end(http, episode, task_id="t", reward=1.0, call=True)
    again = end(http, episode, task_id="t", reward=1.0)
    assert first["state"] == again["state"] == "completed"
    assert (first["replayed"], again["replayed"]) == (False, True)
    assert http.get("/v1/swarm/status").json()["pool"]["episodes"] == 1


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


def test_an_aborted_episode_is_counted_by_reason_and_never_trained(http: httpx.Client) -> None:
    episode = begin(http)
    chat(http, episode, "Hello")
    http.post(f"/v1/swarm/episodes/{episode['episode_id']}/abort", json={"reason": "tool_crashed"}).raise_for_status()
    status = http.get("/v1/swarm/status").json()
    assert status["failures"] == {"tool_crashed": 1}
    assert status["pool"]["episodes"] == 0
    late = http.post(f"/v1/swarm/episodes/{episode['episode_id']}/end", json={"task_id": "t", "reward": 1})
    assert (late.status_code, late.json()["error"]["code"]) == (409, "episode_ended")


def test_a_silent_episode_expires_and_its_key_hears_why(http: httpx.Client) -> None:
    episode = begin(http, idle_timeout_s=0.2)
    deadline = time.monotonic() + 60
    while http.get(f"/v1/swarm/episodes/{episode['episode_id']}").json()["episode"]["state"] == "running":
        assert time.monotonic() < deadline
        time.sleep(0.1)
    reply = http.post("/v1/chat/completions", headers=bearer(episode), json={"model": "default", "messages": []})
    assert (reply.status_code, reply.json()["error"]["code"]) == (409, "episode_ended")
    assert "idle_timeout" in reply.json()["error"]["message"]


def test_eval_episodes_never_fill_a_batch(http: httpx.Client) -> None:
    for _ in range(8):
        end(http, begin(http, episode_type="eval"), task_id="t", reward=1.0, call=True)
    status = http.get("/v1/swarm/status").json()
    assert (status["step"], status["pool"]["episodes"]) == (0, 0)


def test_after_the_last_step_train_episodes_are_refused_and_eval_goes_on(http: httpx.Client) -> None:
    for step in range(3):
        run_batch(http, tasks=2, repeats=2, name=f"step{step}")
        wait_for_step(http, step + 1)
    refused = http.post("/v1/swarm/episodes/begin", json={})
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "training_complete")
    episode = begin(http, episode_type="eval")
    assert episode["weight_version"] == 3


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


def test_streamed_and_plain_replies_are_recorded_alike(http: httpx.Client) -> None:
    episode = begin(http)
    body = {"model": "default", "messages": [{"role": "user", "content": "Hi"}], "seed": 7}
    plain = http.post("/v1/chat/completions", headers=bearer(episode), json=body).json()
    with http.stream("POST", "/v1/chat/completions", headers=bearer(episode), json={**body, "stream": True}) as reply:
        lines = [line.removeprefix("data: ") for line in reply.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    end(http, episode, task_id="t", reward=1)
    detail = http.get(f"/v1/swarm/episodes/{episode['episode_id']}").json()
    assert detail["turns"][0]["output_ids"] == detail["turns"][1]["output_ids"]
    assert plain["choices"][0]["message"]["content"] == detail["turns"][1]["reply"]["content"]


def test_unknown_fields_are_named_and_refused_fields_are_refused_by_name(http: httpx.Client) -> None:
    episode = begin(http)
    body = {"model": "default", "messages": [{"role": "user", "content": "Hi"}]}
    reply = http.post("/v1/chat/completions", headers=bearer(episode), json={**body, "flux": 1})
    assert (reply.status_code, reply.headers["x-ignored-fields"]) == (200, "flux")
    reply = http.post("/v1/chat/completions", headers=bearer(episode), json={**body, "top_k": 5})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "top_k")


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


def test_a_body_over_the_limit_is_refused(start_server: Any) -> None:
    server = start_server(max_body_bytes=2000)
    reply = httpx.put(f"{server.url}/v1/swarm/job", json={"job": {"model": "x" * 4000}}, timeout=60)
    assert reply.status_code == 400
    assert "2000 bytes" in reply.json()["error"]["message"]


def test_a_job_cannot_be_changed_while_another_runs(http: httpx.Client, job: TrainJob) -> None:
    same = http.put("/v1/swarm/job", json={"job": job.model_dump(mode="json", exclude_defaults=True)})
    assert same.status_code == 200
    other = http.put("/v1/swarm/job", json={"job": {"engine": "fake", "batch_size": 4}})
    assert (other.status_code, other.json()["error"]["code"]) == (409, "illegal_transition")


def test_a_token_guards_control_and_episode_routes(start_server: Any) -> None:
    token = "a-token-of-sixteen-chars"
    server = start_server(token=token)
    for headers in ({}, {"authorization": "Bearer another-token-of-sixteen"}):
        assert httpx.get(f"{server.url}/v1/swarm/status", headers=headers, timeout=60).status_code == 401
        assert (
            httpx.post(f"{server.url}/v1/swarm/episodes/begin", json={}, headers=headers, timeout=60).status_code == 401
        )
    good = {"authorization": f"Bearer {token}"}
    assert httpx.get(f"{server.url}/v1/swarm/status", headers=good, timeout=60).status_code == 200


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
