"""Rewards over real HTTP after the end of an episode: turn rewards, and revision until the batch is closed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests_support import begin, chat, end, wait_for_state, wait_for_step

from swarm.job import TrainJob


@pytest.fixture
def http(start_server: Any) -> Iterator[httpx.Client]:
    server = start_server(TrainJob(engine="fake", batch_size=1, num_repeat=2))
    with httpx.Client(base_url=server.url, timeout=60) as client:
        wait_for_state(client, "ROLLING")
        yield client


def revise(http: httpx.Client, episode: dict[str, Any], **body: Any) -> httpx.Response:
    return http.post(f"/v1/swarm/episodes/{episode['episode_id']}/reward", json={"reason": "judge was wrong", **body})


def shown(http: httpx.Client, episode: dict[str, Any]) -> dict[str, Any]:
    return http.get(f"/v1/swarm/episodes/{episode['episode_id']}").json()


def test_a_revised_reward_is_trained_in_place_of_the_first(http: httpx.Client) -> None:
    episode = begin(http)
    end(http, episode, task_id="t", reward=-5.0, call=True)
    assert revise(http, episode, reward=3.0, is_success=True).status_code == 200
    assert shown(http, episode)["episode"]["reward"] == 3.0
    end(http, begin(http), task_id="t", reward=1.0, call=True)
    wait_for_step(http, 1)
    # The fake trainer's advantage is the reward minus the group's mean.
    assert shown(http, episode)["advantage"] == 1.0
    [point] = http.get("/v1/swarm/metrics").json()["points"]
    assert point["metrics"]["critic/score/mean"] == 2.0


def test_a_revision_is_refused_once_the_batch_is_closed(http: httpx.Client) -> None:
    episodes = [begin(http) for _ in range(2)]
    for number, episode in enumerate(episodes):
        end(http, episode, task_id="t", reward=float(number), call=True)
    wait_for_step(http, 1)
    reply = revise(http, episodes[0], reward=1.0)
    assert (reply.status_code, reply.json()["error"]["code"]) == (409, "episode_ended")
    assert reply.headers["x-should-retry"] == "false"
    assert shown(http, episodes[0])["episode"]["reward"] == 0.0


def test_turn_rewards_have_one_entry_per_recorded_turn(http: httpx.Client) -> None:
    episode = begin(http)
    for _ in range(2):
        chat(http, episode, "Hello")
    body = {"task_id": "t", "reward": 1.0, "turn_rewards": [0.5]}
    reply = http.post(f"/v1/swarm/episodes/{episode['episode_id']}/end", json=body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "turn_rewards")
    assert shown(http, episode)["episode"]["state"] == "running"
    body["turn_rewards"] = [0.5, -0.5]
    first = http.post(f"/v1/swarm/episodes/{episode['episode_id']}/end", json=body)
    again = http.post(f"/v1/swarm/episodes/{episode['episode_id']}/end", json=body)
    assert (first.status_code, again.json()["replayed"]) == (200, True)
    assert shown(http, episode)["episode"]["turn_rewards"] == [0.5, -0.5]
