"""Measures one version of the service: a training step for each line that comes on standard input.

Place in the flow: rounds.py starts this file, always that of the newer version, as a program with PYTHONPATH set to the
tree that is measured, once for each version. So it imports nothing of `bench`, and of the service only what its users
know: the command that starts a server, and the client. All else that it sees of the server is its processes.

Standard output has one JSON object per line: `{"ready": VERSION}` or `{"missing": REASON}`, then the figures of each
step. The end of standard input ends the program and its server.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    import httpx
    import psutil

    from swarm import SwarmClient

Figures = dict[str, float]

WARM_UP_STEPS = 2
START_LIMIT_S = 120.0
STOP_LIMIT_S = 20.0
CALL_LIMIT_S = 60.0
TINY_LR = 1e-6
"""Rewards are made up, and learning from them must not drive the weights anywhere."""


@dataclass(frozen=True, slots=True)
class Spent:
    """Processor time in seconds up to now: of the server process, of those below it, and of this program; and the time
    on the clock."""

    server: float
    worker: float
    client: float
    clock: float


@dataclass(frozen=True, slots=True)
class Opened:
    """An episode that began: its id, the name of its task, and what it is given for its answer."""

    episode_id: str
    task_id: str
    question: str
    reward: float


class Episodes:
    """Runs the train episodes of one step after the other on a server that has a job."""

    def __init__(self, job: dict[str, Any], client: SwarmClient, http: httpx.Client, server: psutil.Process) -> None:
        self.count: int = job["batch_size"] * job["num_repeat"]
        self._repeats: int = job["num_repeat"]
        self._client = client
        self._http = http
        self._server = server
        self._step = 0

    def begin_step(self) -> list[tuple[str, str, float]]:
        """Task, question and reward of each episode of the next step: the same in every version."""
        self._step += 1
        random = Random(self._step)
        words = ["".join(random.choices("ABCDEFGHIJKLMNOPQRSTUVWXYZ", k=5)) for _ in range(self.count // self._repeats)]
        return [
            (f"{self._step}-{number}", f"Reverse: {word}", float(repeat % 2))
            for number, word in enumerate(words)
            for repeat in range(self._repeats)
        ]

    def open(self, planned: tuple[str, str, float], settings: dict[str, Any]) -> Opened:
        """Begin an episode and make its model call."""
        task_id, question, reward = planned
        episode_id, credentials = self._client.begin_episode(task_id=task_id, wait_timeout=CALL_LIMIT_S)
        self._http.post(
            f"{credentials.base_url}/chat/completions",
            headers={"Authorization": f"Bearer {credentials.api_key}"},
            json={"model": credentials.model, "messages": [{"role": "user", "content": question}], **settings},
        ).raise_for_status()
        return Opened(episode_id, task_id, question, reward)

    def end(self, opened: Opened) -> None:
        from swarm import Task, WorkflowOutput

        task = Task(opened.question, opened.task_id)
        self._client.end_episode(task, opened.episode_id, WorkflowOutput(reward=opened.reward))

    def wait_until_trained(self) -> None:
        self._client.wait_until_step(self._step, CALL_LIMIT_S)

    def read_spent(self) -> Spent:
        own = self._server.cpu_times()
        below = [process.cpu_times() for process in self._server.children(recursive=True)]
        return Spent(
            server=own.user + own.system,
            worker=sum(each.user + each.system for each in below),
            client=time.process_time(),
            clock=time.perf_counter(),
        )


TRAINING = {
    "engine": "local",
    "project_name": "bench",
    "batch_size": 16,
    "num_repeat": 4,
    "max_response_length": 64,
    "lr": TINY_LR,
}
"""Steps of the bundled model."""
CONTROL_PLANE = {"engine": "fake", "project_name": "bench", "batch_size": 16, "num_repeat": 8}
"""Steps without a model: what is left is the work of the server, and of its client, for an episode."""


def measure_training(episodes: Episodes, pool: ThreadPoolExecutor) -> Figures:
    """All episodes have their answers before the first one ends, so that sampling and learning are apart."""
    settings = {"max_tokens": TRAINING["max_response_length"], "ignore_eos": True, "temperature": 1.0}
    began = episodes.read_spent()
    opened = list(pool.map(lambda planned: episodes.open(planned, settings), episodes.begin_step()))
    sampled = episodes.read_spent()
    list(pool.map(episodes.end, opened))
    episodes.wait_until_trained()
    trained = episodes.read_spent()
    kilotokens = episodes.count * TRAINING["max_response_length"] / 1000
    return {
        "sampler_cpu": 1000 * (sampled.worker - began.worker) / kilotokens,
        "gateway_cpu": 1000 * (sampled.server - began.server) / kilotokens,
        "learner_cpu": 1000 * (trained.worker - sampled.worker),
        "training_speed": episodes.count / (trained.clock - began.clock),
    }


def measure_control_plane(episodes: Episodes, pool: ThreadPoolExecutor) -> Figures:
    began = episodes.read_spent()
    list(pool.map(lambda planned: episodes.end(episodes.open(planned, {"max_tokens": 8})), episodes.begin_step()))
    episodes.wait_until_trained()
    ended = episodes.read_spent()
    return {
        "server_cpu": 1000 * (ended.server - began.server) / episodes.count,
        "client_cpu": 1000 * (ended.client - began.client) / episodes.count,
        "episode_speed": episodes.count / (ended.clock - began.clock),
    }


PROBES: dict[str, tuple[dict[str, Any], int, Callable[[Episodes, ThreadPoolExecutor], Figures]]] = {
    "training": (TRAINING, 32, measure_training),
    "control_plane": (CONTROL_PLANE, 16, measure_control_plane),
}
"""The job, the threads of the client, and what measures a step."""


@contextmanager
def start_server(directory: Path) -> Iterator[tuple[str, int]]:
    """URL and process id of a new server without a job; it is ended with the block. Raises RuntimeError."""
    log = directory / "server.log"
    command = [sys.executable, "-m", "swarm.cli", "start", "--port", "0", "--json", "--home", str(directory / "home")]
    with ExitStack() as stack:
        stderr = stack.enter_context(log.open("w", encoding="utf-8"))
        # A SIGTERM between the start of the process and its registration here would leave a server that nobody ends.
        with _delayed_termination():
            server = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True))
            stack.callback(_end, server)
        limit = threading.Timer(START_LIMIT_S, server.kill)
        stack.callback(limit.cancel)
        limit.start()
        assert server.stdout is not None
        line = server.stdout.readline()
        limit.cancel()
        if not line:
            said = log.read_text(encoding="utf-8").strip().splitlines()
            raise RuntimeError(f"the server did not start: {said[-1] if said else 'it said nothing'}")
        yield json.loads(line)["url"], server.pid


@contextmanager
def _delayed_termination() -> Iterator[None]:
    """A SIGTERM that comes within the block takes effect at its end."""
    received: list[int] = []
    handler = signal.signal(signal.SIGTERM, lambda number, _: received.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)
        if received:
            signal.raise_signal(signal.SIGTERM)


def _end(server: subprocess.Popen[str]) -> None:
    server.terminate()
    try:
        server.wait(timeout=STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        server.kill()


def measure_steps(name: str, tree: Path, requests: IO[str], answers: IO[str]) -> None:
    """Answer each line of `requests`. Raises what a failing call raises, or ImportError for a version that lacks it."""
    import httpx
    import psutil

    import swarm
    from swarm import ConnectionStack, SwarmClient, TrainJob

    if not Path(swarm.__file__).is_relative_to(tree):
        raise ImportError(f"swarm is imported from {Path(swarm.__file__).parent}")
    job, threads, measure = PROBES[name]
    with (
        tempfile.TemporaryDirectory(prefix="bench-probe-") as directory,
        start_server(Path(directory)) as (url, pid),
        SwarmClient(url, client_id="bench", timeout=CALL_LIMIT_S) as client,
        httpx.Client(timeout=CALL_LIMIT_S, transport=ConnectionStack()) as http,
        ThreadPoolExecutor(threads, thread_name_prefix="bench") as pool,
    ):
        client.auto_sync_train_config_and_start_engine(TrainJob(**job), boot_timeout=START_LIMIT_S)
        episodes = Episodes(job, client, http, psutil.Process(pid))
        for _ in range(WARM_UP_STEPS):
            measure(episodes, pool)
        _say(answers, {"ready": swarm.__version__})
        for _ in requests:
            _say(answers, measure(episodes, pool))


def _say(answers: IO[str], document: dict[str, Any]) -> None:
    print(json.dumps(document), file=answers, flush=True)


def main(arguments: Sequence[str]) -> int:
    """`probe.py NAME TREE`."""
    name, tree = arguments
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    # What libraries print must not stand among the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        measure_steps(name, Path(tree).resolve(), sys.stdin, answers)
    except Exception as error:  # noqa: BLE001 - an older version may lack anything: the reason is data
        _say(answers, {"missing": f"{type(error).__name__}: {error}".splitlines()[0]})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
