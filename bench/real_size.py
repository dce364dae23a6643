"""A model of real size on this machine: how fast it is sampled over HTTP, and by whom."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import httpx
import numpy as np
import torch
from transformers import AutoModelForCausalLM, Qwen2Config

from bench.results import Result
from bench.versions.processor_time import start_server
from swarm import AsyncConnectionStack, EpisodeType, SwarmClient, TrainJob
from swarm.model_path import BUNDLED_DIRECTORY, WEIGHT_SUFFIXES, read_tokenizer
from swarm.processes.cores import usable_cores

BENCHMARK: Final = "real_size"
PROMPT_TOKENS, COMPLETION_TOKENS = 100, 48
CONCURRENCY: Final = (1, 8, 32)
TURNS: Final = 5
SETTLE_S: Final = 1.5
"""Pause between two endpoints' turns: vLLM goes on waiting busily for a second after its last request."""
VLLM: Final = "SWARM_VLLM_PYTHON"
CASE_LIMIT_S: Final = 300.0
START_LIMIT_S: Final = 180.0
CALL_LIMIT_S: Final = 30.0
STOP_LIMIT_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class _Endpoint:
    url: str
    model: str
    headers: dict[str, str]


def run(seconds: float) -> list[Result]:
    """Return tokens per second of each sampler at 1, 8 and 32 requests, with one thread per core.

    The same requests go to a server whose worker samples. They also go to a server whose sampler is vLLM, and to vLLM
    alone, if SWARM_VLLM_PYTHON names an interpreter that has it. These three are up at the same time and measured in
    turn. `generate` of transformers runs in this process afterwards.

    Raises EngineFailure, TimeoutError, and the error of a call that fails.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(usable_cores())
    try:
        with tempfile.TemporaryDirectory(prefix="bench-real-size-") as directory:
            model = write_model(Path(directory) / "model")
            return [*asyncio.run(_sampled(model, seconds)), *_generated(model)]
    finally:
        torch.set_num_threads(threads)


def write_model(directory: Path) -> Path:
    """Write a random model with the bundled tokenizer, and return its directory."""
    shutil.copytree(
        BUNDLED_DIRECTORY, directory, ignore=lambda _, names: {n for n in names if n.endswith(WEIGHT_SUFFIXES)}
    )
    config = Qwen2Config(
        vocab_size=read_tokenizer(BUNDLED_DIRECTORY).get_vocab_size(),
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(str(directory))
    return directory


async def _sampled(model: Path, seconds: float) -> list[Result]:
    cases: dict[str, Callable[[], Any]] = {"local": lambda: _swarm(model, "local")}
    if executable := os.environ.get(VLLM):
        cases["vLLM behind the local trainer"] = lambda: _swarm(model, "vllm")
        cases["vLLM alone"] = lambda: _vllm(model, executable)
    async with AsyncExitStack() as stack:
        endpoints = {name: await stack.enter_async_context(opened()) for name, opened in cases.items()}
        http = await stack.enter_async_context(
            httpx.AsyncClient(timeout=CASE_LIMIT_S, transport=AsyncConnectionStack())
        )
        # No prompt comes twice: a sampler may remember what it has computed.
        prompts = {name: _prompts() for name in endpoints}
        return [
            Result(BENCHMARK, f"{name}, {concurrency} at a time", "tokens_per_second", rate, "tokens/s")
            for concurrency in CONCURRENCY
            for name, rate in (await _compare(http, endpoints, prompts, concurrency, seconds)).items()
        ]


async def _compare(
    http: httpx.AsyncClient,
    endpoints: Mapping[str, _Endpoint],
    prompts: Mapping[str, Iterator[list[int]]],
    concurrency: int,
    seconds: float,
) -> dict[str, float]:
    """Return each endpoint's tokens per second at this many concurrent requests.

    Each figure is the median of rounds, which the endpoints take in turn.
    """
    async with asyncio.timeout(CASE_LIMIT_S * len(endpoints)):
        for name, endpoint in endpoints.items():
            await _drive(http, endpoint, prompts[name], concurrency, 0.0)
        rates: dict[str, list[float]] = {name: [] for name in endpoints}
        for _ in range(TURNS):
            for name, endpoint in endpoints.items():
                await asyncio.sleep(SETTLE_S)
                rates[name].append(await _drive(http, endpoint, prompts[name], concurrency, seconds / TURNS))
    return {name: median(found) for name, found in rates.items()}


async def _drive(
    http: httpx.AsyncClient, endpoint: _Endpoint, prompts: Iterator[list[int]], concurrency: int, seconds: float
) -> float:
    """Return tokens per second over as many whole rounds of requests as fit, at least one."""
    began, tokens = time.perf_counter(), 0
    while True:
        answers = await asyncio.gather(*(_complete(http, endpoint, next(prompts)) for _ in range(concurrency)))
        tokens += sum(answers)
        if (spent := time.perf_counter() - began) >= seconds:
            return tokens / spent


async def _complete(http: httpx.AsyncClient, endpoint: _Endpoint, prompt: list[int]) -> int:
    body = {"model": endpoint.model, "prompt": prompt, "max_tokens": COMPLETION_TOKENS, "ignore_eos": True}
    answer = await http.post(f"{endpoint.url}/completions", json=body, headers=endpoint.headers)
    answer.raise_for_status()
    return int(answer.json()["usage"]["completion_tokens"])


def _prompts() -> Iterator[list[int]]:
    """Yield random prompts, the same for every sampler."""
    random, vocabulary = np.random.default_rng(0), read_tokenizer(BUNDLED_DIRECTORY).get_vocab_size()
    while True:
        yield random.integers(0, vocabulary, PROMPT_TOKENS).tolist()


@asynccontextmanager
async def _swarm(model: Path, sampler: str) -> AsyncGenerator[_Endpoint]:
    async with AsyncExitStack() as stack:
        settings = {name: value for name, value in os.environ.items() if name == VLLM}
        url, _ = stack.enter_context(start_server(SWARM_TORCH_THREADS=str(usable_cores()), **settings))
        client = stack.enter_context(SwarmClient(url, client_id="bench", timeout=CALL_LIMIT_S))
        job = TrainJob.model_validate({"model": str(model), "sampler": sampler, "project_name": "bench"})
        await asyncio.to_thread(client.auto_sync_train_config_and_start_engine, job, boot_timeout=CASE_LIMIT_S)
        _, credentials = await asyncio.to_thread(
            client.begin_episode, EpisodeType.EVAL, discard_episode_timeout=CASE_LIMIT_S
        )
        yield _Endpoint(f"{url}/v1", "default", {"authorization": f"Bearer {credentials.api_key}"})


@asynccontextmanager
async def _vllm(model: Path, executable: str) -> AsyncGenerator[_Endpoint]:
    with (
        tempfile.TemporaryDirectory(prefix="bench-vllm-") as directory,
        _vllm_process(model, executable, directory) as url,
    ):
        await _wait_until_up(url)
        yield _Endpoint(f"{url}/v1", "bench", {})


@contextmanager
def _vllm_process(model: Path, executable: str, directory: str) -> Iterator[str]:
    """Start a vLLM server and yield its URL before it answers."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = (
        f"--dtype bfloat16 --max-model-len 1024 --max-num-seqs {max(CONCURRENCY)} --enforce-eager"
        f" --generation-config vllm --served-model-name bench --host 127.0.0.1 --port {port}"
    )
    environment = {
        **os.environ,
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(usable_cores()),
        "HF_HUB_OFFLINE": "1",
    }
    environment.pop("PYTHONPATH", None)
    with (
        (Path(directory) / "vllm.log").open("wb") as log,
        subprocess.Popen(
            [executable, "-m", "vllm.entrypoints.cli.main", "serve", str(model), *options.split()],
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


async def _wait_until_up(url: str) -> None:
    async with httpx.AsyncClient() as http, asyncio.timeout(START_LIMIT_S):
        while not await _is_up(http, url):
            await asyncio.sleep(0.5)


async def _is_up(http: httpx.AsyncClient, url: str) -> bool:
    try:
        return (await http.get(f"{url}/health", timeout=2)).status_code == 200
    except httpx.TransportError:
        return False


def _generated(model: Path) -> list[Result]:
    module: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16).eval()
    results: list[Result] = []
    for concurrency in CONCURRENCY:
        prompts = _prompts()
        ids = torch.tensor([next(prompts) for _ in range(concurrency)])
        began = time.perf_counter()
        with torch.inference_mode():
            module.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=True, min_new_tokens=COMPLETION_TOKENS,
                max_new_tokens=COMPLETION_TOKENS, pad_token_id=0,
            )  # fmt: skip
        rate = concurrency * COMPLETION_TOKENS / (time.perf_counter() - began)
        case = f"transformers.generate, {concurrency} at a time"
        results.append(Result(BENCHMARK, case, "tokens_per_second", rate, "tokens/s"))
    return results
