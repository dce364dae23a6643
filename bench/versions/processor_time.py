"""Processor time of a training step, divided among the server, its worker and its client.

asv runs this file on earlier commits too, so it imports nothing but what users of the service know.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from random import Random
from string import ascii_uppercase

import httpx
import psutil

from swarm import ConnectionStack, SwarmClient, Task, TrainJob, WorkflowOutput

WARM_UP_STEPS, STEPS = 2, 4
THREADS = 32
CALL_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of processor time of a step, in which all episodes have their answers before the first one ends.

    The worker's time therefore divides into sampling and learning. `client` is this process.
    """

    sampler: float
    learner: float
    server: float
    client: float


class _ProcessorTime:
    """The rule by which asv measures: each round has a server of its own, whose steps give one sample of each figure.

    asv spreads the rounds of its commits evenly over the time of the measurement. A process is a little faster or
    slower than the next one of the same program for as long as it lives: more samples of one server would say little.
    """

    repeat = number = min_run_count = 1
    warmup_time = 0
    timeout = 600

    def __init__(self) -> None:
        self._charged_s = 0.0

    def timer(self) -> float:
        """Return the time of a clock that stands still but for what a benchmark charges: other processes spent it."""
        return self._charged_s

    def time_server(self, cost: StepCost) -> None:
        self._charged_s += cost.server


class LocalStep(_ProcessorTime):
    """A step of the bundled model."""

    def setup_cache(self) -> StepCost:
        # Rewards are made up, and learning from them must not drive the weights anywhere.
        return _measure(TrainJob(engine="local", batch_size=16, num_repeat=4, max_response_length=64, lr=1e-6))

    def time_sampler(self, cost: StepCost) -> None:
        self._charged_s += cost.sampler

    def time_learner(self, cost: StepCost) -> None:
        self._charged_s += cost.learner


class FakeStep(_ProcessorTime):
    """A step without a model: what is left is the work of the server, and of its client, for 128 episodes."""

    def setup_cache(self) -> StepCost:
        return _measure(TrainJob(engine="fake", batch_size=16, num_repeat=8, max_response_length=8))

    def time_client(self, cost: StepCost) -> None:
        self._charged_s += cost.client


def _measure(job: TrainJob) -> StepCost:
    """Return the mean cost of a few steps on a server of their own."""
    with (
        start_server() as (url, process),
        SwarmClient(url, client_id="bench", timeout=CALL_LIMIT_S) as client,
        httpx.Client(timeout=CALL_LIMIT_S, transport=ConnectionStack()) as http,
        ThreadPoolExecutor(THREADS) as pool,
    ):
        client.auto_sync_train_config_and_start_engine(job)
        steps = _Steps(job, client, http, process)
        costs = [steps.take(pool) for _ in range(WARM_UP_STEPS + STEPS)][WARM_UP_STEPS:]
    return StepCost(*(sum(parts) / STEPS for parts in zip(*map(astuple, costs), strict=True)))


class _Steps:
    """A series of training steps on a server that has a job, with the same tasks and rewards at every commit."""

    def __init__(self, job: TrainJob, client: SwarmClient, http: httpx.Client, process: psutil.Process) -> None:
        self._job = job
        self._client = client
        self._http = http
        self._process = process
        self._step = 0

    def take(self, pool: ThreadPoolExecutor) -> StepCost:
        self._step += 1
        began = self._read_processor_time()
        opened = list(pool.map(self._sample, self._draw_tasks()))
        sampled = self._read_processor_time()
        list(pool.map(self._end, opened))
        self._client.wait_until_step(self._step, CALL_LIMIT_S)
        ended = self._read_processor_time()
        return StepCost(sampled[0] - began[0], ended[0] - sampled[0], ended[1] - began[1], ended[2] - began[2])

    def _draw_tasks(self) -> list[tuple[Task, WorkflowOutput]]:
        random = Random(self._step)
        words = ["".join(random.choices(ascii_uppercase, k=5)) for _ in range(self._job.batch_size)]
        return [
            (Task(f"Reverse: {word}", f"{self._step}-{number}"), WorkflowOutput(reward=float(repeat % 2)))
            for number, word in enumerate(words)
            for repeat in range(self._job.num_repeat)
        ]

    def _sample(self, planned: tuple[Task, WorkflowOutput]) -> tuple[Task, str, WorkflowOutput]:
        """Begin an episode and make its model call."""
        task, output = planned
        episode_id, credentials = self._client.begin_episode(task_id=task.task_id, wait_timeout=CALL_LIMIT_S)
        self._http.post(
            f"{credentials.base_url}/chat/completions",
            headers={"Authorization": f"Bearer {credentials.api_key}"},
            json={
                "model": credentials.model,
                "messages": [{"role": "user", "content": task.main_query}],
                "max_tokens": self._job.max_response_length,
                "ignore_eos": True,
            },
        ).raise_for_status()
        return task, episode_id, output

    def _end(self, opened: tuple[Task, str, WorkflowOutput]) -> None:
        self._client.end_episode(*opened)

    def _read_processor_time(self) -> tuple[float, float, float]:
        """Return the processor time of the worker, the server and this process so far."""
        times = [each.cpu_times() for each in (self._process, *self._process.children(recursive=True))]
        server, *below = (each.user + each.system for each in times)
        return sum(below), server, time.process_time()


@contextmanager
def start_server(**settings: str) -> Iterator[tuple[str, psutil.Process]]:
    """Start a server without a job, and yield its URL and its process. The server ends with the block.

    Of the variables that configure a server, it has those of `settings` and no others.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SWARM_")}
    # The recorder is a process beside the server, which would count as its sampler.
    environment |= {"SWARM_NO_RECORD": "1", **settings}
    with tempfile.TemporaryDirectory(prefix="bench-versions-") as home:
        command = [sys.executable, "-m", "swarm.cli", "start", "--port", "0", "--json", "--home", home]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server:
            try:
                assert server.stdout is not None
                yield json.loads(server.stdout.readline())["url"], psutil.Process(server.pid)
            finally:
                server.terminate()
