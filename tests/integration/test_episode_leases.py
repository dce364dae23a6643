"""Leases over real HTTP: a client's sign of life keeps its episodes, its silence frees them, a crash costs none."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests_support import begin, wait_for_state

from swarm import SwarmClient, Task, WorkflowOutput
from swarm.job import TrainJob

LEASE_S = 4
"""Longer than a busy machine may keep a client from its next sign of life."""
JOB = {"engine": "fake", "batch_size": 2, "num_repeat": 2, "drain_timeout_s": 10}


@pytest.fixture
def http(start_server: Any) -> Iterator[httpx.Client]:
    server = start_server(TrainJob.model_validate(JOB))
    with httpx.Client(base_url=server.url, timeout=60) as client:
        wait_for_state(client, "ROLLING")
        yield client


def heartbeat(http: httpx.Client, *episodes: dict[str, Any], client_id: str = "laptop") -> dict[str, str]:
    body = {"client_id": client_id, "episode_ids": [episode["episode_id"] for episode in episodes]}
    reply = http.post("/v1/swarm/heartbeat", json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()["ended"]


def state_of(http: httpx.Client, episode: dict[str, Any]) -> tuple[str, str | None]:
    shown = http.get(f"/v1/swarm/episodes/{episode['episode_id']}").json()["episode"]
    return shown["state"], shown["outcome"]


def test_a_silent_client_loses_its_leased_episodes_and_a_living_one_keeps_its_own(http: httpx.Client) -> None:
    dead = [begin(http, client_id="dead", lease_s=1) for _ in range(3)]
    alive = [begin(http, client_id="laptop", lease_s=LEASE_S) for _ in range(3)]
    unleased = begin(http, client_id="laptop")
    until = time.monotonic() + LEASE_S + 1
    while time.monotonic() < until:
        assert heartbeat(http, *alive) == {}
        time.sleep(0.2)
    assert {state_of(http, episode) for episode in dead} == {("expired", "lease_expired")}
    assert {state_of(http, episode)[0] for episode in [*alive, unleased]} == {"running"}
    listed = heartbeat(http, dead[0], alive[0], client_id="dead")
    assert listed == {dead[0]["episode_id"]: "lease_expired"}
    status = http.get("/v1/swarm/status").json()
    assert {client["client_id"]: (client["running"], client["lost"]) for client in status["clients"]} == {
        "dead": (0, 3),
        "laptop": (4, 0),
    }
    assert status["failures"] == {"lease_expired": 3}


def test_a_client_is_told_once_what_looks_wrong_about_it(http: httpx.Client, caplog: pytest.LogCaptureFixture) -> None:
    with SwarmClient(str(http.base_url), client_id="careless") as client:
        for reward in (0.0, 1.0):
            with client.open_episode(Task("Reverse: ab", "none"), lease_s=1.0) as episode:
                episode.output = WorkflowOutput(reward=reward)
                until = time.monotonic() + 240
                # Heartbeats come by themselves, three in a second; the second task id is wrong as well.
                while reward == 0.0 and "task id" not in caplog.text and time.monotonic() < until:
                    time.sleep(0.05)
    assert heartbeat_warnings(http, "careless").keys() == {"empty_task_id"}
    assert heartbeat_warnings(http, "another") == {}
    told = [record.message for record in caplog.records if "the server warns about client careless" in record.message]
    assert len(told) == 1 and "task id is 'none'" in told[0]


def heartbeat_warnings(http: httpx.Client, client_id: str) -> dict[str, str]:
    reply = http.post("/v1/swarm/heartbeat", json={"client_id": client_id, "episode_ids": []})
    assert reply.status_code == 200, reply.text
    return reply.json()["warnings"]
