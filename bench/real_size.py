"""A model of real size on this machine: how fast it is sampled over HTTP, by whom, and how fast it is trained.

Place in the flow: a benchmark. The model has the shape of Qwen2-0.5B, random weights in bfloat16 and the vocabulary of
the bundled model: 0.36 billion parameters. Prompts are 100 random tokens, completions 48. The same requests go to a
server whose worker samples, to one whose sampler is vLLM, and to vLLM alone, the latter two if SWARM_VLLM_PYTHON names
an interpreter that has it. These three are up at the same time and measured in turn. transformers' own `generate` runs
in this process afterwards. All have one thread per core. What the machine could do at best, multiplying matrices and
reading memory, stands beside it.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import httpx
import numpy as np
import torch
from transformers import AutoModelForCausalLM, Qwen2Config

from bench.control_plane import start_server
from bench.gateway import CALL_LIMIT_S, START_LIMIT_S, vllm_process, wait_until_up
from bench.results import Result
from swarm import AsyncConnectionStack, EpisodeType, SwarmClient, TrainJob
from swarm.backends.local.learning.learner import Learner
from swarm.backends.local.model.loading import load_model
from swarm.model_path import BUNDLED_DIRECTORY, WEIGHT_SUFFIXES, read_tokenizer
from swarm.processes.cores import usable_cores
from swarm.types import FinishedEpisode, Group, Sample, TrainBatch

BENCHMARK: Final = "real_size"
PROMPT_TOKENS, COMPLETION_TOKENS = 100, 48
CONCURRENCY: Final = (1, 8, 32)
TASKS, REPEATS = 4, 4
TURNS: Final = 5
SETTLE_S: Final = 1.5
"""Pause between two endpoints' turns: vLLM goes on waiting busily for a second after its last request."""
VLLM: Final = "SWARM_VLLM_PYTHON"
CASE_LIMIT_S: Final = 300.0
SIDE: Final = 2048
"""The square matrices that are multiplied have so many rows."""
READ_BYTES: Final = 2**28


@dataclass(frozen=True, slots=True)
class _Endpoint:
    url: str
    model: str
    headers: dict[str, str]


def run(seconds: float) -> list[Result]:
    """Tokens per second of each sampler at 1, 8 and 32 requests, and of training. Raises EngineFailure, TimeoutError,
    and what a failing call raises."""
    threads = torch.get_num_threads()
    torch.set_num_threads(usable_cores())
    os.environ["SWARM_TORCH_THREADS"] = str(usable_cores())
    try:
        with tempfile.TemporaryDirectory(prefix="bench-real-size-") as directory:
            model = write_model(Path(directory) / "model")
            results = [*_limits(seconds), *asyncio.run(_sampled(model, seconds))]
            return [*results, *_generated(model), *_trained(model, seconds)]
    finally:
        torch.set_num_threads(threads)


def write_model(directory: Path) -> Path:
    """A random model with the bundled tokenizer; returns the directory."""
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
    """Each endpoint's tokens per second at so many requests: the median of rounds that the endpoints take in turn."""
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
    """Tokens per second of whole rounds of so many requests, as many rounds as fit, at least one."""
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
    """The same for every sampler."""
    random, vocabulary = np.random.default_rng(0), read_tokenizer(BUNDLED_DIRECTORY).get_vocab_size()
    while True:
        yield random.integers(0, vocabulary, PROMPT_TOKENS).tolist()


@asynccontextmanager
async def _swarm(model: Path, sampler: str) -> AsyncGenerator[_Endpoint]:
    async with AsyncExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-real-size-"))
        url, _ = stack.enter_context(start_server(Path(directory)))
        client = stack.enter_context(SwarmClient(url, client_id="bench", timeout=CALL_LIMIT_S))
        job = TrainJob.model_validate({"model": str(model), "sampler": sampler, "project_name": "bench"})
        await asyncio.to_thread(client.auto_sync_train_config_and_start_engine, job, boot_timeout=CASE_LIMIT_S)
        _, credentials = await asyncio.to_thread(
            client.begin_episode, EpisodeType.EVAL, discard_episode_timeout=CASE_LIMIT_S
        )
        yield _Endpoint(f"{url}/v1", "default", {"authorization": f"Bearer {credentials.api_key}"})


@asynccontextmanager
async def _vllm(model: Path, executable: str) -> AsyncGenerator[_Endpoint]:
    command = [executable, "-m", "vllm.entrypoints.cli.main"]
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-vllm-"))
        url = stack.enter_context(
            vllm_process(command, model, directory, dtype="bfloat16", threads=usable_cores(), longest=1024)
        )
        await wait_until_up(url, START_LIMIT_S)
        yield _Endpoint(f"{url}/v1", "bench", {})


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


def _trained(model: Path, seconds: float) -> list[Result]:
    loaded = load_model(model, device="cpu", max_model_len=None)
    learner = Learner(loaded.module, TrainJob(model=str(model), batch_size=TASKS, num_repeat=REPEATS, lr=1e-6))
    tokens, rates, ends = (
        TASKS * REPEATS * (PROMPT_TOKENS + COMPLETION_TOKENS),
        list[float](),
        time.perf_counter() + seconds,
    )
    for step in (1, 2, 3):
        batch = _build_batch(step, loaded.vocabulary)
        began = time.perf_counter()
        learner.step(batch)
        rates.append(tokens / (time.perf_counter() - began))
        if time.perf_counter() > ends and step > 1:
            break
    case = f"training, {TASKS} x {REPEATS} episodes"
    return [Result(BENCHMARK, case, "tokens_per_second", max(rates), "tokens/s")]


def _build_batch(step: int, vocabulary: int) -> TrainBatch:
    """Each task has a prompt of its own; rewards alternate."""
    random, logprob = np.random.default_rng(step), -float(np.log(vocabulary))
    groups: list[Group] = []
    for task in range(TASKS):
        prompt: list[int] = random.integers(0, vocabulary, PROMPT_TOKENS).tolist()
        episodes = tuple(
            _build_episode(f"{task}-{repeat}", f"task-{task}", prompt, random, vocabulary, logprob, float(repeat % 2))
            for repeat in range(REPEATS)
        )
        groups.append(Group(f"task-{task}", episodes))
    return TrainBatch(batch_id=f"batch-{step}", step=step, groups=tuple(groups))


def _build_episode(
    name: str, task: str, prompt: list[int], random: np.random.Generator, vocabulary: int, logprob: float, reward: float
) -> FinishedEpisode:
    read, sampled = PROMPT_TOKENS, COMPLETION_TOKENS
    sample = Sample(
        episode_id=name,
        token_ids_T=(*prompt, *random.integers(0, vocabulary, sampled).tolist()),
        loss_mask_T=(False,) * read + (True,) * sampled,
        logprobs_T=(0.0,) * read + (logprob,) * sampled,
        weight_versions_T=(-1,) * read + (0,) * sampled,
        turn_indices_T=(-1,) * read + (0,) * sampled,
        temperatures_T=(1.0,) * (read + sampled),
    )
    return FinishedEpisode(name, task, "bench", reward, None, (sample,), 0.0)


def _limits(seconds: float) -> list[Result]:
    """What this machine multiplies and reads at best, by the same library and threads."""
    results: list[Result] = []
    for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        matrix = torch.randn(SIDE, SIDE).to(dtype)
        best_s = _best(lambda matrix=matrix: matrix @ matrix, seconds)
        results.append(Result(BENCHMARK, f"matrices, {name}", "rate", 2 * SIDE**3 / best_s / 1e9, "GFLOP/s"))
    buffer = torch.ones(READ_BYTES // 4)
    best_s = _best(buffer.sum, seconds)
    results.append(Result(BENCHMARK, "memory", "read", READ_BYTES / best_s / 1e9, "GB/s"))
    return results


def _best(work: Callable[[], Any], seconds: float) -> float:
    best, ends = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < ends or best == float("inf"):
        began = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - began)
    return best
