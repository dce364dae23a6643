"""Begin and end of many episodes in one request over real HTTP: each entry is what a request of its own would be."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests_support import WAIT_S, begin, chat, end, wait_for_state, wait_for_step

from swarm.job import TrainJob

JOB = TrainJob(engine="fake", batch_size=2, num_repeat=2, total_steps=3, drain_timeout_s=2)
BEGIN, END = "/v1/swarm/episodes/begin_many", "/v1/swarm/episodes/end_many"
PLACES = 4
"""What one batch of the job has room for."""


@pytest.fixture
def http(start_server: Any) -> Iterator[httpx.Client]:
    server = start_server(JOB)
    with httpx.Client(base_url=server.url, timeout=60) as client:
        wait_for_state(client, "ROLLING")
        yield client


def send(http: httpx.Client, path: str, *entries: Any) -> list[dict[str, Any]]:
    """The lines of the answer, which are in the order of the entries where none is held."""
    reply = http.post(path, json={"episodes": entries})
    assert reply.status_code == 200, reply.text
    return [json.loads(line) for line in reply.text.splitlines()]


def result(episode: dict[str, Any], reward: float, task_id: str = "t", **more: Any) -> dict[str, Any]:
    return {"episode_id": episode["episode_id"], "task_id": task_id, "reward": reward, **more}


def task_of(index: int) -> str:
    return f"task-{index // JOB.num_repeat}"


def named(count: int, **more: Any) -> list[dict[str, Any]]:
    return [{"task_id": task_of(index), **more} for index in range(count)]


def wait_for_waiting(http: httpx.Client, count: int) -> None:
    deadline = time.monotonic() + WAIT_S
    while f"swarm_waiting_begins {count}" not in http.get("/metrics").text:
        assert time.monotonic() < deadline, "they are not held"
        time.sleep(0.02)


def test_a_batch_that_is_begun_and_ended_in_two_requests_is_trained(http: httpx.Client) -> None:
    lines = send(http, BEGIN, *named(PLACES))
    assert [(line["index"], line["status"]) for line in lines] == [(index, 201) for index in range(PLACES)]
    for line in lines:
        chat(http, line["answer"], "Hello")
    results = [result(line["answer"], float(index % 2), task_of(index)) for index, line in enumerate(lines)]
    ended = send(http, END, *results)
    assert [(line["index"], line["status"], line["answer"]["state"]) for line in ended] == [
        (index, 200, "completed") for index in range(PLACES)
    ]
    wait_for_step(http, 1)
    [point] = http.get("/v1/swarm/metrics").json()["points"]
    assert point["metrics"]["batch/episodes"] == PLACES


def test_each_entry_has_the_answer_or_the_error_that_it_would_have_alone(http: httpx.Client) -> None:
    over = begin(http)
    http.post(f"/v1/swarm/episodes/{over['episode_id']}/abort", json={"reason": "gone"}).raise_for_status()
    good = begin(http)
    unsound = {**result(good, 1.0), "colour": "red"}
    results = [result(over, 1.0), {"episode_id": "none", "task_id": "t", "reward": 1.0}, unsound, result(good, 0.5)]
    lines = send(http, END, *results)
    assert [line["status"] for line in lines] == [409, 404, 400, 200]
    assert lines[3]["answer"]["state"] == "completed"
    for entry, line in zip(results[:3], lines, strict=False):
        body = {name: value for name, value in entry.items() if name != "episode_id"}
        alone = http.post(f"/v1/swarm/episodes/{entry['episode_id']}/end", json=body)
        assert (line["status"], line["error"]) == (alone.status_code, alone.json()["error"])
    begins = [{"lease_s": -1}, 5, {"colour": "red"}, {"task_id": "t"}]
    assert [line["status"] for line in send(http, BEGIN, *begins)] == [400, 400, 400, 201]


def test_the_same_entries_again_are_the_same_episodes_and_the_same_ends(http: httpx.Client) -> None:
    entries = [{"begin_secret": letter * 32, "task_id": "t"} for letter in "ab"]
    first = send(http, BEGIN, *entries)
    assert send(http, BEGIN, *reversed(entries), entries[0]) == [
        {**first[1], "index": 0},
        {**first[0], "index": 1},
        {**first[0], "index": 2},
    ]
    one, two = (line["answer"] for line in first)
    for episode in (one, two):
        chat(http, episode, "Hello")
    ends = send(http, END, result(one, 1.0), result(one, 1.0), result(two, 0.0))
    assert sorted(line["answer"]["replayed"] for line in ends[:2]) == [False, True]
    again = send(http, END, result(one, 1.0), result(two, 1.0))
    assert again[0]["answer"]["replayed"]
    assert (again[1]["status"], again[1]["error"]["code"]) == (409, "idempotency_mismatch")
    assert http.get("/v1/swarm/status").json()["pool"]["episodes"] == 2


def test_an_entry_that_is_held_holds_no_other_and_is_told_once_it_is_let_in(http: httpx.Client) -> None:
    for index in range(PLACES - 1):
        begin(http, task_id=task_of(index))
    last = {"task_id": task_of(PLACES - 1)}
    entries = [{"task_id": "later", "wait_s": 60}, last, {"task_id": "never", "wait_s": 0.2}]
    with http.stream("POST", BEGIN, json={"episodes": entries}, timeout=WAIT_S) as reply:
        lines = reply.iter_lines()
        at_once = json.loads(next(lines))
        assert (at_once["index"], at_once["status"]) == (1, 201)
        refused = json.loads(next(lines))
        assert (refused["index"], refused["status"], refused["retry_after_s"]) == (2, 503, 1)
        assert refused["error"]["code"] == "rollout_paused"
        # Its place goes to whoever waits for one.
        body = {"reason": "gone", "final": False}
        http.post(f"/v1/swarm/episodes/{at_once['answer']['episode_id']}/abort", json=body).raise_for_status()
        again = begin(http, **last)
        end(http, again, task_id=last["task_id"], reward=0.5, call=True)
        for row in http.get("/v1/swarm/episodes?state=running").json()["episodes"]:
            end(http, row, task_id=row["task_id"], reward=1.0)
        admitted = json.loads(next(lines))
        assert (admitted["index"], admitted["status"]) == (0, 201)
        assert list(lines) == []


def test_entries_wait_in_the_order_in_which_they_came_among_all_callers(start_server: Any) -> None:
    server = start_server(JOB, max_running_episodes=1)
    with httpx.Client(base_url=server.url, timeout=WAIT_S) as http:
        wait_for_state(http, "ROLLING")
        running = begin(http, episode_type="eval")
        entries = [{"episode_type": "eval", "client_id": name, "wait_s": 60} for name in ("first", "second")]
        with http.stream("POST", BEGIN, json={"episodes": entries}) as one:
            wait_for_waiting(http, 2)
            later = [{"episode_type": "eval", "client_id": name, "wait_s": 60} for name in ("third", "fourth")]
            with http.stream("POST", BEGIN, json={"episodes": later}) as two:
                wait_for_waiting(http, 4)
                order: list[str] = []
                for lines in (one.iter_lines(), two.iter_lines()):
                    for _ in range(2):
                        end(http, running, task_id="t", reward=0.0)
                        running = json.loads(next(lines))["answer"]
                        [row] = http.get("/v1/swarm/episodes?state=running").json()["episodes"]
                        assert row["episode_id"] == running["episode_id"]
                        order.append(row["client_id"])
                assert order == ["first", "second", "third", "fourth"]


def test_a_caller_that_hangs_up_has_no_episode_begun_of_those_that_are_held(http: httpx.Client) -> None:
    with http.stream("POST", BEGIN, json={"episodes": named(PLACES + 3, wait_s=60)}) as reply:
        lines = reply.iter_lines()
        at_once = [json.loads(next(lines)) for _ in range(PLACES)]
        wait_for_waiting(http, 3)
    wait_for_waiting(http, 0)
    for index, line in enumerate(at_once):
        end(http, line["answer"], task_id=task_of(index), reward=float(index % 2), call=True)
    wait_for_step(http, 1)
    assert http.get("/v1/swarm/episodes?state=running").json()["episodes"] == []


def test_without_an_engine_begins_are_refused_at_once_and_recorded_ends_are_told_again(http: httpx.Client) -> None:
    first, second = (line["answer"] for line in send(http, BEGIN, *named(2)))
    end(http, first, task_id="task-0", reward=1.0, call=True)
    http.post("/v1/swarm/engine/stop").raise_for_status()
    refused = http.post(BEGIN, json={"episodes": named(2)})
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_not_ready")
    told, over = send(http, END, result(first, 1.0, "task-0"), result(second, 1.0, "task-0"))
    assert (told["status"], told["answer"]["replayed"]) == (200, True)
    assert (over["status"], over["error"]["code"]) == (409, "episode_ended")


@pytest.mark.parametrize("path", [BEGIN, END])
@pytest.mark.parametrize("episodes", [[], [{}] * 257, {}, None])
def test_a_list_that_is_none_or_too_long_is_refused_as_a_whole(
    http: httpx.Client, path: str, episodes: list[Any] | None
) -> None:
    reply = http.post(path, json={"episodes": episodes})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "episodes")
