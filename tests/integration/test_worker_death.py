"""kill -9 of the engine worker alone: the gateway stays, and training goes on."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
from process_support import command_of, descendants
from tests_support import begin, chat, end, run_batch, wait_for_state, wait_for_step

from swarm.job import TrainJob
from swarm.program.attempts import Model
from swarm.tasks.agent import open_http

JOB = TrainJob(batch_size=2, num_repeat=2, drain_timeout_s=2, max_response_length=24)
WORKER = "swarm.backends.local.worker"


def is_worker(process: psutil.Process) -> bool:
    return command_of(process)[2:4] == ["-m", WORKER]


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


def test_a_worker_that_is_paused_for_longer_than_calls_wait_answers_own_clients_when_it_goes_on(
    start_server: Any,
) -> None:
    others = workers()
    server = start_server(JOB, max_wait_s=0.3)
    with httpx.Client(base_url=server.url, timeout=60) as http, open_http(keep_alive_s=0.1) as own:
        wait_for_state(http, "ROLLING")
        episode = begin(http, episode_type="eval")
        model = Model(episode["base_url"], episode["api_key"], "default", 8, own)
        (worker,) = workers() - others
        with ThreadPoolExecutor() as pool:
            worker.suspend()
            try:
                call = pool.submit(model.chat, [{"role": "user", "content": "Reverse: ABC"}])
                key = {"authorization": f"Bearer {episode['api_key']}"}
                body = {"model": "default", "messages": [{"role": "user", "content": "Reverse: ABC"}]}
                assert http.post("/v1/chat/completions", headers=key, json=body).status_code == 503
                assert not call.done()
            finally:
                worker.resume()
            assert call.result(60)["role"] == "assistant"
