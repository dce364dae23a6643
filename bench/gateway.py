"""The cost of the gateway: tokens per second over HTTP with every token recorded, beside the bare engine.

Place in the flow: a benchmark. The bundled model answers chat completions of 48 tokens for 32 clients at a time: first
through the bare engine, then through a server. The clients are one process on one event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from bench.control_plane import start_server
from bench.engine import CASE_LIMIT_S, COMPLETION_TOKENS, WARM_UP, CaseOutput, bare_sampler, drive, questions
from bench.results import Result, latency_results
from swarm import AsyncConnectionStack, EpisodeType, SwarmClient, TrainJob

BENCHMARK = "gateway"
CLIENTS = 32
STREAMING_CLIENTS = 8
CALLS_PER_EPISODE = 16
START_LIMIT_S = 180.0
CALL_LIMIT_S = 30.0


@dataclass(frozen=True, slots=True)
class _Endpoint:
    """The address of chat completions. `begin` gives the headers of a new episode of `CALLS_PER_EPISODE` calls."""

    url: str
    begin: Callable[[], Awaitable[dict[str, str]]]


def run(seconds: float) -> list[Result]:
    """Return tokens per second of both paths, their ratio, and the time to the first streamed token.

    Raises EngineFailure if the server does not start, and what a failing call raises.
    """
    return asyncio.run(_measure(seconds))


async def _measure(seconds: float) -> list[Result]:
    async with bare_sampler() as sampler, asyncio.timeout(seconds * (1 + WARM_UP) + CASE_LIMIT_S):
        await drive(sampler, CLIENTS, seconds * WARM_UP)
        bare = (await drive(sampler, CLIENTS, seconds)).tokens / seconds
    async with (
        _server() as endpoint,
        httpx.AsyncClient(timeout=CALL_LIMIT_S, transport=AsyncConnectionStack()) as http,
        asyncio.timeout(2 * seconds * (1 + WARM_UP) + CASE_LIMIT_S),
    ):
        await _drive(http, endpoint, CLIENTS, seconds * WARM_UP, _complete)
        whole = (await _drive(http, endpoint, CLIENTS, seconds, _complete)).tokens / seconds
        await _drive(http, endpoint, STREAMING_CLIENTS, seconds * WARM_UP, _stream)
        streamed = await _drive(http, endpoint, STREAMING_CLIENTS, seconds, _stream)
    return [
        Result(BENCHMARK, "bare engine", "tokens_per_second", bare, "tokens/s"),
        Result(BENCHMARK, "server", "tokens_per_second", whole, "tokens/s"),
        Result(BENCHMARK, "server", "streamed_tokens_per_second", streamed.tokens / seconds, "tokens/s"),
        *latency_results(BENCHMARK, "server", "first_token", streamed.first_tokens_s),
        Result(BENCHMARK, "server", "overhead", 100 * (1 - whole / bare), "%"),
    ]


Send = Callable[[httpx.AsyncClient, str, dict[str, str], dict[str, Any], CaseOutput], Awaitable[None]]


async def _drive(http: httpx.AsyncClient, endpoint: _Endpoint, clients: int, seconds: float, send: Send) -> CaseOutput:
    """Send calls one after the other in each client; calls still open at the end do not count."""
    tally, asked = CaseOutput(), questions()
    deadline = time.perf_counter() + seconds
    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(_keep_calling(http, endpoint, asked, deadline, send, tally))
    return tally


async def _keep_calling(
    http: httpx.AsyncClient, endpoint: _Endpoint, asked: Iterator[str], deadline: float, send: Send, tally: CaseOutput
) -> None:
    headers: dict[str, str] = {}
    for number in itertools.count():
        if time.perf_counter() >= deadline:
            return
        if number % CALLS_PER_EPISODE == 0:
            headers = await endpoint.begin()
        body = {
            "model": "default",
            "messages": [{"role": "user", "content": next(asked)}],
            "max_tokens": COMPLETION_TOKENS,
            "ignore_eos": True,
            "temperature": 1.0,
        }
        done = CaseOutput()
        await send(http, f"{endpoint.url}/chat/completions", headers, body, done)
        if time.perf_counter() < deadline:
            tally.tokens += done.tokens
            tally.first_tokens_s += done.first_tokens_s


async def _complete(
    http: httpx.AsyncClient, url: str, headers: dict[str, str], body: dict[str, Any], done: CaseOutput
) -> None:
    response = await http.post(url, headers=headers, json=body)
    response.raise_for_status()
    done.tokens += response.json()["usage"]["completion_tokens"]


async def _stream(
    http: httpx.AsyncClient, url: str, headers: dict[str, str], body: dict[str, Any], done: CaseOutput
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
async def _server() -> AsyncGenerator[_Endpoint]:
    """Start a server with eval episodes only; it records their turns like any others."""
    async with AsyncExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-gateway-"))
        url, _ = stack.enter_context(start_server(Path(directory)))
        client = stack.enter_context(SwarmClient(url, client_id="bench", timeout=CALL_LIMIT_S))
        job = TrainJob(project_name="bench", max_response_length=COMPLETION_TOKENS)
        client.auto_sync_train_config_and_start_engine(job, boot_timeout=START_LIMIT_S)

        async def new_episode() -> dict[str, str]:
            _, credentials = await asyncio.to_thread(client.begin_episode, episode_type=EpisodeType.EVAL)
            return {"authorization": f"Bearer {credentials.api_key}"}

        yield _Endpoint(f"{url}/v1", new_episode)
