"""kill -9 of the engine worker alone: the gateway stays, the calls in flight are answered, and training goes on."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from process_support import command_of, descendants, kill_all
from tests_support import begin, chat, end, run_batch, wait_for_state, wait_for_step

from swarm.job import TrainJob

JOB = TrainJob(batch_size=2, num_repeat=2, drain_timeout_s=2, max_response_length=24)
WORKER = "swarm.backends.local.worker"


@pytest.fixture
def http(start_server: Any) -> Any:
    server = start_server(JOB)
    with httpx.Client(base_url=server.url, timeout=60) as client:
        wait_for_state(client, "ROLLING")
        yield client


def is_worker(process: psutil.Process) -> bool:
    return command_of(process)[1:3] == ["-m", WORKER]


def workers() -> set[psutil.Process]:
    """Those of this process. What one of them has forked looks like it until it is another program."""
    found = [child for child in descendants(os.getpid()) if is_worker(child)]
    pids = {child.pid for child in found}
    first: set[psutil.Process] = set()
    for child in found:
        with suppress(psutil.NoSuchProcess):
            if child.ppid() not in pids:
                first.add(child)
    return first


def seconds_computed(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def wait_for_recovery(http: httpx.Client, count: int) -> dict[str, Any]:
    deadline = time.monotonic() + 60
    while True:
        status = http.get("/v1/swarm/status").json()
        if status["recoveries"] == count and status["state"] == "ROLLING":
            return status
        assert time.monotonic() < deadline, status
        time.sleep(0.02)


@pytest.mark.slow
def test_calls_in_flight_survive_the_worker_and_step_and_pool_stay(http: httpx.Client) -> None:
    run_batch(http, tasks=2, repeats=2)
    wait_for_step(http, 1)
    end(http, begin(http), task_id="half", reward=1.0, call=True)
    episode = begin(http)
    with ThreadPoolExecutor(4) as threads:
        calls = [
            threads.submit(chat, http, episode, f"Write the numbers up to {n}, please.", max_tokens=900, temperature=2)
            for n in (100, 200, 300)
        ]
        time.sleep(0.1)
        kill_all(workers())
        ready = http.get("/ready")
        replies = [call.result(timeout=60) for call in calls]
    assert ready.status_code in {200, 503}
    assert all(reply["choices"][0]["finish_reason"] in {"stop", "length"} for reply in replies)
    status = wait_for_recovery(http, 1)
    assert (status["step"], status["weight_version"], status["pool"]["episodes"]) == (1, 1, 1)
    end(http, episode, task_id="half", reward=0.0)
    run_batch(http, tasks=1, repeats=2, name="other")
    wait_for_step(http, 2)
    detail = http.get(f"/v1/swarm/episodes/{episode['episode_id']}").json()
    assert [len(turn["output_ids"]) for turn in detail["turns"]] == [
        reply["usage"]["completion_tokens"] for reply in sorted(replies, key=lambda reply: _index(detail, reply))
    ]


def _index(detail: dict[str, Any], reply: dict[str, Any]) -> int:
    content = reply["choices"][0]["message"]["content"]
    return next(turn["index"] for turn in detail["turns"] if turn["reply"]["content"] == content)


def test_a_worker_killed_in_the_training_step_trains_the_batch_once(start_server: Any, tmp_path: Path) -> None:
    # Many passes over the batch, so that there is a step to be killed in, whenever each process has its turn.
    job = JOB.model_copy(update={"ppo_epochs": 24})
    others = workers()
    server = start_server(job)
    with httpx.Client(base_url=server.url, timeout=60) as http:
        wait_for_state(http, "ROLLING")
        run_batch(http, tasks=1, repeats=2)
        end(http, begin(http), task_id="task-1", reward=0.0, call=True)
        last = begin(http)
        chat(http, last, "Solve task-1")
        (training,) = workers() - others
        training.suspend()
        end(http, last, task_id="task-1", reward=1.0)
        wait_for_state(http, "TRAINING")
        before = seconds_computed(training)
        training.resume()
        while seconds_computed(training) < before + 0.2:
            time.sleep(0.005)
        training.kill()
        status = wait_for_step(http, 1)
        assert (status["weight_version"], status["recoveries"]) == (1, 1)
        trained = http.get("/v1/swarm/episodes", params={"state": "trained"}).json()["episodes"]
        assert len(trained) == 4
