"""What a training step costs the server, the processes below it and the client.

Place in the flow: the benchmarks beside this ask for the mean of a few steps on a server of their own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from string import ascii_uppercase

import httpx
import psutil

from swarm import ConnectionStack, Credentials, SwarmClient, Task, TrainJob, WorkflowOutput

WARM_UP_STEPS = 2
STEPS = 4
THREADS = 32
CALL_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds of processor time: of the server process, of those below it, and of this program, its client."""

    server: float
    worker: float
    client: float

    def __sub__(self, before: Spent) -> Spent:
        return Spent(self.server - before.server, self.worker - before.worker, self.client - before.client)


@dataclass(frozen=True, slots=True)
class Step:
    """The two halves of a step: all episodes have their answers before the first one ends."""

    sampling: Spent
    learning: Spent


class Server:
    """A running server with a job, whose client is this program."""

    def __init__(self, job: TrainJob, client: SwarmClient, http: httpx.Client, process: psutil.Process) -> None:
        self._job = job
        self._client = client
        self._http = http
        self._process = process
        self._step = 0

    def take_step(self, pool: ThreadPoolExecutor) -> Step:
        self._step += 1
        began = self._read_spent()
        opened = list(pool.map(self._sample, self._draw_tasks()))
        sampled = self._read_spent()
        list(pool.map(self._end, opened))
        self._client.wait_until_step(self._step, CALL_LIMIT_S)
        return Step(sampled - began, self._read_spent() - sampled)

    def _draw_tasks(self) -> list[tuple[Task, float]]:
        """A task and a made-up reward for each episode of the step: the same at every commit."""
        random = Random(self._step)
        tasks = [
            Task(f"Reverse: {''.join(random.choices(ascii_uppercase, k=5))}", f"{self._step}-{number}")
            for number in range(self._job.batch_size)
        ]
        return [(task, float(repeat % 2)) for task in tasks for repeat in range(self._job.num_repeat)]

    def _sample(self, planned: tuple[Task, float]) -> tuple[Task, float, str]:
        task, reward = planned
        episode_id, credentials = self._client.begin_episode(task_id=task.task_id, wait_timeout=CALL_LIMIT_S)
        self._call(credentials, task)
        return task, reward, episode_id

    def _call(self, credentials: Credentials, task: Task) -> None:
        body = {
            "model": credentials.model,
            "messages": [{"role": "user", "content": task.main_query}],
            "max_tokens": self._job.max_response_length,
            "ignore_eos": True,
        }
        headers = {"Authorization": f"Bearer {credentials.api_key}"}
        self._http.post(f"{credentials.base_url}/chat/completions", headers=headers, json=body).raise_for_status()

    def _end(self, opened: tuple[Task, float, str]) -> None:
        task, reward, episode_id = opened
        self._client.end_episode(task, episode_id, WorkflowOutput(reward=reward))

    def _read_spent(self) -> Spent:
        server, *below = (
            times.user + times.system
            for times in (each.cpu_times() for each in (self._process, *self._process.children(recursive=True)))
        )
        return Spent(server, sum(below), time.process_time())


def measure(job: TrainJob) -> list[Step]:
    """The steps of a server that is started for them, those of its warm-up left out."""
    with start_server() as (url, process), SwarmClient(url, client_id="bench", timeout=CALL_LIMIT_S) as client:
        client.auto_sync_train_config_and_start_engine(job)
        with (
            httpx.Client(timeout=CALL_LIMIT_S, transport=ConnectionStack()) as http,
            ThreadPoolExecutor(THREADS) as pool,
        ):
            server = Server(job, client, http, process)
            return [server.take_step(pool) for _ in range(WARM_UP_STEPS + STEPS)][WARM_UP_STEPS:]


@contextmanager
def start_server() -> Iterator[tuple[str, psutil.Process]]:
    """Address and process of a new server without a job; it is ended with the block."""
    with tempfile.TemporaryDirectory(prefix="bench-versions-") as home:
        command = [sys.executable, "-m", "swarm.cli", "start", "--port", "0", "--json", "--home", home]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                yield json.loads(server.stdout.readline())["url"], psutil.Process(server.pid)
            finally:
                server.terminate()
