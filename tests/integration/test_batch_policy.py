"""The batch policy over real HTTP: live changes, mixture, agreement, and the deadline of a batch."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from tests_support import begin, end, wait_for_state, wait_for_step

from swarm.job import TrainJob

Connect = Callable[..., Any]


@pytest.fixture
def connect(start_server: Any) -> Connect:
    @contextmanager
    def rolling(**job: Any) -> Iterator[httpx.Client]:
        server = start_server(TrainJob.model_validate({"engine": "fake", "batch_size": 1, "num_repeat": 2, **job}))
        with httpx.Client(base_url=server.url, timeout=60) as http:
            wait_for_state(http, "ROLLING")
            yield http

    return rolling


def attempt(http: httpx.Client, task_id: str, reward: float = 1.0, **body: Any) -> None:
    end(http, begin(http, **body), task_id=task_id, reward=reward, call=True)


def test_a_fast_client_cannot_take_the_share_of_a_slow_one(connect: Connect) -> None:
    """Each batch holds three tasks of one source and one of the other, though the latter comes as fast as it can."""
    with connect(batch_size=4, mixture={"math": 0.75, "code": 0.25}, total_steps=4) as http:
        url = str(http.base_url)
        speeds = {"math": 0.02, "code": 0.0}
        clients = [threading.Thread(target=feed, args=(url, source, pause_s)) for source, pause_s in speeds.items()]
        for client in clients:
            client.start()
        wait_for_step(http, 4)
        for client in clients:
            client.join(timeout=60)
        assert not any(client.is_alive() for client in clients)
        trained = http.get("/v1/swarm/episodes", params={"state": "trained", "limit": 1000}).json()["episodes"]
        per_batch = Counter((shown["batch_id"], shown["data_source"]) for shown in trained)
        assert {number for (_, source), number in per_batch.items() if source == "math"} == {6}
        assert {number for (_, source), number in per_batch.items() if source == "code"} == {2}
        assert len(per_batch) == 8


def feed(url: str, source: str, pause_s: float) -> None:
    """Attempt one task after another until the job is done."""
    number = 0
    with httpx.Client(base_url=url, timeout=60) as http:
        while True:
            reply = http.post(
                "/v1/swarm/episodes/begin", json={"data_source": source, "wait_s": 1, "client_id": source}
            )
            if reply.status_code == 409:
                return
            if reply.status_code == 503:
                continue
            time.sleep(pause_s)
            end(http, reply.json(), task_id=f"{source}-{number // 2}", reward=float(number % 2), call=True)
            number += 1


def test_the_batch_trains_as_soon_as_every_living_client_agrees(connect: Connect) -> None:
    with connect(stop_rule="all_clients_agree") as http:
        for name in ("a", "b"):
            for reward in (0.0, 1.0):
                attempt(http, f"task of {name}", reward, client_id=name)
        agree = http.post("/v1/swarm/batch/agree", json={"client_id": "a"})
        assert agree.json() == {"agreed": ["a"], "will_close": False}
        assert http.get("/v1/swarm/status").json()["pool"]["agreed"] == ["a"]
        agree = http.post("/v1/swarm/batch/agree", json={"client_id": "b"})
        assert agree.json() == {"agreed": ["a", "b"], "will_close": True}
        wait_for_step(http, 1)
        assert http.get("/v1/swarm/status").json()["pool"]["agreed"] == []
