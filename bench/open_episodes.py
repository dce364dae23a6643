"""The control plane while thousands of episodes are open: latency of begin, call, end and status, memory of the server.

Place in the flow: a benchmark. So many episodes are begun and left open, kept alive by the client's heartbeats; then a
few workers run whole episodes beside them. Server and client share the machine.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

from bench.control_plane import CALL_LIMIT_S, JOB, START_LIMIT_S, start_server
from bench.results import Result, latency_results
from swarm import AsyncConnectionStack, AsyncSwarmClient, Task, WorkflowOutput

BENCHMARK = "open_episodes"
OPEN = (1_000, 10_000)
WORKERS = 16
IDLE_S = 3_600.0
MEGABYTE = 2**20


@dataclass(slots=True)
class _Tally:
    """Seconds of every call, by kind."""

    seconds: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    episodes: int = 0

    @asynccontextmanager
    async def time(self, kind: str) -> AsyncIterator[None]:
        began = time.perf_counter()
        yield
        self.seconds.setdefault(kind, []).append(time.perf_counter() - began)


def run(seconds: float) -> list[Result]:
    """With 1,000 and 10,000 open episodes. Raises EngineFailure if the server does not start, what a call raises."""
    return [result for number in OPEN for result in asyncio.run(_measure(number, seconds))]


async def _measure(number: int, seconds: float) -> list[Result]:
    with (
        tempfile.TemporaryDirectory(prefix="bench-open-episodes-") as directory,
        start_server(Path(directory)) as (url, pid),
    ):
        server = psutil.Process(pid)
        # The job is not that of the other benchmark: a batch that waits for the open episodes would hold everybody.
        job = JOB.model_copy(update={"max_staleness": 1_000, "episode_timeout_s": 2 * IDLE_S})
        async with (
            AsyncSwarmClient(url, client_id="bench", timeout=CALL_LIMIT_S) as client,
            httpx.AsyncClient(timeout=CALL_LIMIT_S, transport=AsyncConnectionStack()) as http,
        ):
            await client.auto_sync_train_config_and_start_engine(job, boot_timeout=START_LIMIT_S)
            await _open(client, number)
            tally = _Tally()
            await _drive(client, http, tally, seconds / 2)
            halfway = _rss(server)
            await _drive(client, http, tally, seconds / 2)
            return _summarize(number, seconds, tally, _rss(server), halfway)


async def _open(client: AsyncSwarmClient, number: int) -> None:
    remaining = iter(range(number))

    async def worker() -> None:
        for _ in remaining:
            await client.begin_episode(discard_episode_timeout=IDLE_S)

    await asyncio.gather(*(worker() for _ in range(WORKERS)))


async def _drive(client: AsyncSwarmClient, http: httpx.AsyncClient, tally: _Tally, seconds: float) -> None:
    deadline = time.perf_counter() + seconds
    numbers = itertools.count()
    episodes = (_keep_running(client, http, tally, numbers, deadline) for _ in range(WORKERS))
    await asyncio.gather(_keep_looking(client, tally, deadline), *episodes)


async def _keep_running(
    client: AsyncSwarmClient, http: httpx.AsyncClient, tally: _Tally, numbers: itertools.count[int], deadline: float
) -> None:
    while time.perf_counter() < deadline:
        number = next(numbers)
        async with tally.time("begin"):
            episode_id, credentials = await client.begin_episode(discard_episode_timeout=IDLE_S)
        async with tally.time("call"):
            answer = await http.post(
                f"{credentials.base_url}/chat/completions",
                headers={"Authorization": f"Bearer {credentials.api_key}"},
                json={
                    "model": credentials.model,
                    "messages": [{"role": "user", "content": "Reverse: ABC"}],
                    "max_tokens": 8,
                },
            )
            answer.raise_for_status()
        async with tally.time("end"):
            task = Task("Reverse: ABC", f"task-{number // JOB.num_repeat}")
            await client.end_episode(task, episode_id, WorkflowOutput(reward=float(number % 2)))
        tally.episodes += 1


async def _keep_looking(client: AsyncSwarmClient, tally: _Tally, deadline: float) -> None:
    """A dashboard beside the load."""
    while time.perf_counter() < deadline:
        async with tally.time("status"):
            await client.status()
        await asyncio.sleep(0.5)


def _summarize(number: int, seconds: float, tally: _Tally, rss: float, halfway: float) -> list[Result]:
    case = f"{number} open"
    return [
        Result(BENCHMARK, case, "episodes_per_second", tally.episodes / seconds, "episodes/s"),
        *(
            result
            for kind in sorted(tally.seconds)
            for result in latency_results(BENCHMARK, case, kind, tally.seconds[kind])
        ),
        Result(BENCHMARK, case, "server_rss", rss, "MB"),
        Result(BENCHMARK, case, "server_rss_growth_in_second_half", rss - halfway, "MB"),
    ]


def _rss(server: psutil.Process) -> float:
    """Resident memory of the server and its children."""
    return sum(process.memory_info().rss for process in (server, *server.children(recursive=True))) / MEGABYTE
