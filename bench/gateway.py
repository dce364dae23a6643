"""What the gateway costs: tokens per second over HTTP with every token recorded, beside the bare engine and vLLM.

Place in the flow: a benchmark. The bundled model answers chat completions of 48 tokens for 32 clients at a time, in one
run through the bare engine, through a server, and, if `BENCH_VLLM` names a vLLM executable, through vLLM serving the
same weights. The clients, one process on one event loop, send the same bodies to both servers.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from bench.control_plane import start_server
from bench.engine import CASE_LIMIT_S, COMPLETION_TOKENS, WARM_UP, Tally, bare_engine, drive, questions
from bench.results import Result, latency_results
from swarm import AsyncConnectionStack, EpisodeType, SwarmClient, TrainJob
from swarm.model_path import BUNDLED_DIRECTORY

BENCHMARK = "gateway"
CLIENTS = 32
STREAMING_CLIENTS = 8
CALLS_PER_EPISODE = 16
VLLM = "BENCH_VLLM"
VLLM_MODEL = "bench"
START_LIMIT_S = 180.0
STOP_LIMIT_S = 20.0
CALL_LIMIT_S = 30.0


@dataclass(frozen=True, slots=True)
class _Endpoint:
    """Where chat completions go; `headers` are asked for once per `CALLS_PER_EPISODE` calls."""

    url: str
    model: str
    headers: Callable[[], Awaitable[dict[str, str]]]


def run(seconds: float) -> list[Result]:
    """Tokens per second of each path, their ratios, and the time to the first streamed token.

    Raises EngineFailure if a server does not start, and what a failing call raises.
    """
    return asyncio.run(_measure(seconds))


async def _measure(seconds: float) -> list[Result]:
    results: list[Result] = []
    async with bare_engine() as engine, asyncio.timeout(seconds * (1 + WARM_UP) + CASE_LIMIT_S):
        await drive(engine, CLIENTS, seconds * WARM_UP)
        bare = (await drive(engine, CLIENTS, seconds)).tokens / seconds
    results.append(Result(BENCHMARK, "bare engine", "tokens_per_second", bare, "tokens/s"))
    async with _swarm() as endpoint:
        rate, figures = await _case("swarm", endpoint, seconds)
    results += [*figures, Result(BENCHMARK, "swarm", "overhead", 100 * (1 - rate / bare), "%")]
    if executable := os.environ.get(VLLM):
        async with _vllm(executable) as endpoint:
            other, figures = await _case("vLLM", endpoint, seconds)
        results += [*figures, Result(BENCHMARK, "swarm", "speed_over_vllm", rate / other, "x")]
    return results


async def _case(name: str, endpoint: _Endpoint, seconds: float) -> tuple[float, list[Result]]:
    async with httpx.AsyncClient(timeout=CALL_LIMIT_S, transport=AsyncConnectionStack()) as http:
        async with asyncio.timeout(2 * seconds * (1 + WARM_UP) + CASE_LIMIT_S):
            await _drive(http, endpoint, CLIENTS, seconds * WARM_UP, _complete)
            whole = await _drive(http, endpoint, CLIENTS, seconds, _complete)
            await _drive(http, endpoint, STREAMING_CLIENTS, seconds * WARM_UP, _stream)
            streamed = await _drive(http, endpoint, STREAMING_CLIENTS, seconds, _stream)
    rate = whole.tokens / seconds
    return rate, [
        Result(BENCHMARK, name, "tokens_per_second", rate, "tokens/s"),
        Result(BENCHMARK, name, "streamed_tokens_per_second", streamed.tokens / seconds, "tokens/s"),
        *latency_results(BENCHMARK, name, "first_token", streamed.first_tokens_s),
    ]


Send = Callable[[httpx.AsyncClient, str, dict[str, str], dict[str, Any], Tally], Awaitable[None]]


async def _drive(http: httpx.AsyncClient, endpoint: _Endpoint, clients: int, seconds: float, send: Send) -> Tally:
    """Calls one after the other in each client; those under way at the end do not count."""
    tally, asked = Tally(), questions()
    deadline = time.perf_counter() + seconds
    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(_keep_calling(http, endpoint, asked, deadline, send, tally))
    return tally


async def _keep_calling(
    http: httpx.AsyncClient, endpoint: _Endpoint, asked: Iterator[str], deadline: float, send: Send, tally: Tally
) -> None:
    headers: dict[str, str] = {}
    for number in itertools.count():
        if time.perf_counter() >= deadline:
            return
        if number % CALLS_PER_EPISODE == 0:
            headers = await endpoint.headers()
        body = {
            "model": endpoint.model,
            "messages": [{"role": "user", "content": next(asked)}],
            "max_tokens": COMPLETION_TOKENS,
            "ignore_eos": True,
            "temperature": 1.0,
        }
        done = Tally()
        await send(http, f"{endpoint.url}/chat/completions", headers, body, done)
        if time.perf_counter() < deadline:
            tally.tokens += done.tokens
            tally.first_tokens_s += done.first_tokens_s


async def _complete(
    http: httpx.AsyncClient, url: str, headers: dict[str, str], body: dict[str, Any], done: Tally
) -> None:
    response = await http.post(url, headers=headers, json=body)
    response.raise_for_status()
    done.tokens += response.json()["usage"]["completion_tokens"]


async def _stream(
    http: httpx.AsyncClient, url: str, headers: dict[str, str], body: dict[str, Any], done: Tally
) -> None:
    began = time.perf_counter()
    streaming = {**body, "stream": True, "stream_options": {"include_usage": True}}
    async with http.stream("POST", url, headers=headers, json=streaming) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line[6:])
            if not done.first_tokens_s and any(choice["delta"].get("content") for choice in chunk["choices"]):
                done.first_tokens_s.append(time.perf_counter() - began)
            if usage := chunk.get("usage"):
                done.tokens += usage["completion_tokens"]


@asynccontextmanager
async def _swarm() -> AsyncGenerator[_Endpoint]:
    """A server of its own with eval episodes, whose turns are recorded like any."""
    async with AsyncExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-gateway-"))
        url, _ = stack.enter_context(start_server(Path(directory)))
        client = stack.enter_context(SwarmClient(url, client_id="bench", timeout=CALL_LIMIT_S))
        job = TrainJob(project_name="bench", max_response_length=COMPLETION_TOKENS)
        client.auto_sync_train_config_and_start_engine(job, boot_timeout=START_LIMIT_S)

        async def new_episode() -> dict[str, str]:
            _, credentials = await asyncio.to_thread(client.begin_episode, episode_type=EpisodeType.EVAL)
            return {"authorization": f"Bearer {credentials.api_key}"}

        yield _Endpoint(f"{url}/v1", "default", new_episode)


@asynccontextmanager
async def _vllm(executable: str) -> AsyncGenerator[_Endpoint]:
    with (
        tempfile.TemporaryDirectory(prefix="bench-vllm-") as directory,
        vllm_process([executable], BUNDLED_DIRECTORY, directory) as url,
    ):
        await wait_until_up(url, START_LIMIT_S)

        async def no_headers() -> dict[str, str]:
            return {}

        yield _Endpoint(f"{url}/v1", VLLM_MODEL, no_headers)


@contextmanager
def vllm_process(
    program: Sequence[str], model: Path, directory: str, *, dtype: str = "float32", threads: int = 1, longest: int = 256
) -> Iterator[str]:
    """URL of a new vLLM server, which `program` starts; by default with one thread, as the swarm's worker has. Wait
    until it is up before it is called."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = (
        f"--dtype {dtype} --max-model-len {longest} --max-num-seqs {CLIENTS} --enforce-eager --generation-config vllm"
    )
    command = [*program, "serve", str(model), "--served-model-name", VLLM_MODEL, "--port", str(port)]
    environment = {
        **os.environ,
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
    }
    environment.pop("PYTHONPATH", None)
    with (
        (Path(directory) / "vllm.log").open("wb") as log,
        subprocess.Popen(
            [*command, "--host", "127.0.0.1", *options.split()],
            stdout=log,
            stderr=log,
            env=environment,
            cwd=directory,
            start_new_session=True,
        ) as server,
    ):
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            os.killpg(server.pid, signal.SIGTERM)
            try:
                server.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                os.killpg(server.pid, signal.SIGKILL)


async def wait_until_up(url: str, limit_s: float) -> None:
    """Raises TimeoutError."""
    async with httpx.AsyncClient() as http, asyncio.timeout(limit_s):
        while not await _is_up(http, url):
            await asyncio.sleep(0.5)


async def _is_up(http: httpx.AsyncClient, url: str) -> bool:
    try:
        return (await http.get(f"{url}/health", timeout=2)).status_code == 200
    except httpx.TransportError:
        return False
