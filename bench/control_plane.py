"""Speed of the control plane: train episodes per second against a server in a process of its own.

Place in the flow: a benchmark. Each episode is begun, makes one chat call to the fake engine and is ended with a
reward, over HTTP and through the ledger; batches fill and are trained by the fake trainer as in a real job, so the
slowest begins waited for a batch. The client's threads share one Python process, which is part of the figure. The last
case is measured beside thousands of eval episodes that stay open.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from bench.results import Result, latency_results
from swarm import ConnectionStack, EngineFailure, EpisodeType, SwarmClient, Task, TrainJob, WorkflowOutput

BENCHMARK = "control_plane"
THREADS = (1, 16, 64)
OPEN = 10_000
IDLE_S = 3_600.0
JOB = TrainJob(engine="fake", project_name="bench", batch_size=16, num_repeat=8)
PROGRAM = ("swarm.cli", "start", "--port", "0", "--json")
WARM_UP = 0.25
"""The part of `seconds` that each case runs before it is measured."""
START_LIMIT_S = 60.0
STOP_LIMIT_S = 20.0
CALL_LIMIT_S = 30.0


@dataclass(frozen=True, slots=True)
class _Times:
    """The times at which the calls of one episode began, and at which the last of them had its answer."""

    begin: float
    call: float
    end: float
    over: float


@dataclass(frozen=True, slots=True)
class _Measured:
    """The episodes that ended within the given seconds, or within the time of the first one if that took longer."""

    seconds: float
    episodes: Sequence[_Times]


class _Load:
    """Runs episodes from any number of threads; `number` gives every episode its task."""

    def __init__(self, client: SwarmClient, http: httpx.Client) -> None:
        self._client = client
        self._http = http
        self._number = itertools.count()

    def open(self, episodes: int) -> None:
        """Begin this many eval episodes and leave them open; the client's heartbeats keep them."""
        with ThreadPoolExecutor(THREADS[-1]) as pool:
            begin = partial(self._client.begin_episode, EpisodeType.EVAL, discard_episode_timeout=IDLE_S)
            list(pool.map(lambda _: begin(), range(episodes)))

    def drive(self, threads: int, seconds: float) -> _Measured:
        """Run episodes one after the other on each thread. Raises what the first failing call raised."""
        episodes: list[_Times] = []
        stop = threading.Event()
        began = time.perf_counter()
        deadline = began + seconds
        with ThreadPoolExecutor(threads, thread_name_prefix="bench") as pool:
            futures = [pool.submit(self._keep_running, deadline, stop) for _ in range(threads)]
            try:
                for future in futures:
                    episodes += future.result(timeout=seconds + 3 * CALL_LIMIT_S)
            finally:
                stop.set()
        ended = max(deadline, min(episode.over for episode in episodes))
        return _Measured(ended - began, [episode for episode in episodes if episode.over <= ended])

    def _keep_running(self, deadline: float, stop: threading.Event) -> list[_Times]:
        episodes = [self._run_episode(next(self._number))]
        while not stop.is_set() and time.perf_counter() < deadline:
            episodes.append(self._run_episode(next(self._number)))
        return episodes

    def _run_episode(self, number: int) -> _Times:
        task = Task("Reverse: ABC", f"task-{number // JOB.num_repeat}")
        began = time.perf_counter()
        episode_id, credentials = self._client.begin_episode(task_id=task.task_id, wait_timeout=CALL_LIMIT_S)
        called = time.perf_counter()
        self._http.post(
            f"{credentials.base_url}/chat/completions",
            headers={"Authorization": f"Bearer {credentials.api_key}"},
            json={
                "model": credentials.model,
                "messages": [{"role": "user", "content": task.main_query}],
                "max_tokens": 8,
            },
        ).raise_for_status()
        answered = time.perf_counter()
        self._client.end_episode(task, episode_id, WorkflowOutput(reward=float(number % 2)))
        return _Times(began, called, answered, time.perf_counter())


def run(seconds: float) -> list[Result]:
    """Return episodes per second and the latency of begin, call and end, for 1, 16 and 64 client threads.

    Raises EngineFailure if the server does not start, and what a failing call raises.
    """
    results: list[Result] = []
    with (
        tempfile.TemporaryDirectory(prefix="bench-control-plane-") as directory,
        start_server(Path(directory)) as (url, _),
        SwarmClient(url, client_id="bench", timeout=CALL_LIMIT_S) as client,
        httpx.Client(timeout=CALL_LIMIT_S, transport=ConnectionStack()) as http,
    ):
        client.auto_sync_train_config_and_start_engine(JOB, boot_timeout=START_LIMIT_S)
        load = _Load(client, http)
        for threads in THREADS:
            load.drive(threads, seconds * WARM_UP)
            results += _summarize(f"{threads} thread{'s' if threads > 1 else ''}", load.drive(threads, seconds))
        load.open(OPEN)
        results += _summarize(f"{THREADS[-1]} threads beside {OPEN:,} open", load.drive(THREADS[-1], seconds))
    return results


def _summarize(case: str, measured: _Measured) -> list[Result]:
    episodes = measured.episodes
    return [
        Result(BENCHMARK, case, "episodes_per_second", len(episodes) / measured.seconds, "episodes/s"),
        *latency_results(BENCHMARK, case, "begin", [each.call - each.begin for each in episodes]),
        *latency_results(BENCHMARK, case, "call", [each.end - each.call for each in episodes]),
        *latency_results(BENCHMARK, case, "end", [each.over - each.end for each in episodes]),
    ]


@contextmanager
def start_server(directory: Path, program: Sequence[str] = PROGRAM) -> Iterator[tuple[str, int]]:
    """Start a server without a job, and yield its URL and process id. Raises EngineFailure.

    The server ends with the block. `program` is the module, with its arguments, that announces itself as `swarm start
    --json` does.
    """
    log = directory / "server.log"
    command = [sys.executable, "-m", *program, "--home", str(directory / "home")]
    environment = {name: value for name, value in os.environ.items() if name != "SWARM_TOKEN"}
    with (
        log.open("w", encoding="utf-8") as stderr,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment) as server,
    ):
        try:
            yield _read_announcement(server, log)["url"], server.pid
        finally:
            _end(server)


def _read_announcement(server: subprocess.Popen[str], log: Path) -> dict[str, Any]:
    assert server.stdout is not None
    # Reading a line has no time limit of its own; it ends with the process.
    limit = threading.Timer(START_LIMIT_S, server.kill)
    limit.start()
    try:
        line = server.stdout.readline()
    finally:
        limit.cancel()
    if not line:
        lines = log.read_text(encoding="utf-8").strip().splitlines()
        raise EngineFailure(f"the server did not start: {lines[-1] if lines else 'it said nothing'}")
    return json.loads(line)


def _end(server: subprocess.Popen[str]) -> None:
    server.terminate()
    try:
        server.wait(timeout=STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        server.kill()
