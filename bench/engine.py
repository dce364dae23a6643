"""Sampling speed of the local engine: tokens per second of the bundled model through `LocalSampler.generate`.

Place in the flow: a benchmark. The worker is a process of its own, as in a server, so what it sends and what this
process reads is part of the figure; HTTP and chat templates are not.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from bench.results import Result, latency_results
from swarm.backends.local.sampler import LocalSampler
from swarm.backends.local.trainer import build_local, build_worker
from swarm.config import ServerConfig
from swarm.job import TrainJob
from swarm.model_path import BUNDLED_DIRECTORY, read_tokenizer
from swarm.types import SamplingParams

BENCHMARK = "engine"
CONCURRENCY = (1, 8, 32)
COMPLETION_TOKENS = 48
WARM_UP = 0.25
"""The part of `seconds` that each case runs before it is measured."""
START_LIMIT_S = 120.0
CASE_LIMIT_S = 30.0
"""Beyond the time that a case is meant to take."""


@dataclass(slots=True)
class CaseOutput:
    """The output of one case until its deadline."""

    tokens: int = 0
    first_tokens_s: list[float] = field(default_factory=list[float])


def run(seconds: float) -> list[Result]:
    """Measure tokens per second and time to the first token, for 1, 8 and 32 requests at a time.

    Raises EngineFailure, or TimeoutError if the engine hangs.
    """
    return asyncio.run(_measure(seconds))


async def _measure(seconds: float) -> list[Result]:
    results: list[Result] = []
    async with bare_sampler() as sampler:
        for concurrency in CONCURRENCY:
            async with asyncio.timeout(seconds * (1 + WARM_UP) + CASE_LIMIT_S):
                await drive(sampler, concurrency, seconds * WARM_UP)
                results += _summarize(concurrency, seconds, await drive(sampler, concurrency, seconds))
    return results


@asynccontextmanager
async def bare_sampler() -> AsyncGenerator[LocalSampler]:
    """Start the local engine with the bundled model; its worker ends with the block."""
    with tempfile.TemporaryDirectory(prefix="bench-engine-") as directory:
        config = ServerConfig()
        worker = build_worker(config, Path(directory) / "worker.log")
        sampler, _ = build_local(TrainJob(), config, worker)
        try:
            async with asyncio.timeout(START_LIMIT_S):
                await sampler.start()
            yield sampler
        finally:
            await worker.stop()


async def drive(
    sampler: LocalSampler,
    concurrency: int,
    seconds: float,
    prompts: Iterator[list[int]] | None = None,
    completion_tokens: int = COMPLETION_TOKENS,
) -> CaseOutput:
    """Keep `concurrency` requests going for `seconds`; those under way at the end are aborted, their tokens count."""
    tally, prompts = CaseOutput(), prompts or _prompts()
    deadline = time.perf_counter() + seconds
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(_keep_sampling(sampler, prompts, completion_tokens, deadline, tally))
    except ExceptionGroup as failures:
        # A worker that dies fails every request with the same reason.
        raise failures.exceptions[0] from failures
    return tally


async def _keep_sampling(
    sampler: LocalSampler, prompts: Iterator[list[int]], completion_tokens: int, deadline: float, tally: CaseOutput
) -> None:
    params = SamplingParams(max_tokens=completion_tokens, ignore_eos=True)
    while (began := time.perf_counter()) < deadline:
        is_first = True
        async with aclosing(sampler.generate("bench", next(prompts), params)) as deltas:
            async for delta in deltas:
                now = time.perf_counter()
                if now >= deadline:
                    return
                if is_first:
                    tally.first_tokens_s.append(now - began)
                    is_first = False
                tally.tokens += len(delta.token_ids_T)


def _summarize(concurrency: int, seconds: float, tally: CaseOutput) -> list[Result]:
    case = f"{concurrency} at a time"
    return [
        Result(BENCHMARK, case, "tokens_per_second", tally.tokens / seconds, "tokens/s"),
        *latency_results(BENCHMARK, case, "first_token", tally.first_tokens_s),
    ]


def questions() -> Iterator[str]:
    """Yield endless user messages of one length with different words, so that they share only their beginning."""
    random = Random(0)
    for _ in itertools.count():
        yield "Reverse: " + "".join(random.choices("ABCDEFGHIJKLMNOPQRSTUVWXYZ", k=5))


def _prompts() -> Iterator[list[int]]:
    tokenizer = read_tokenizer(BUNDLED_DIRECTORY)
    for question in questions():
        text = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
        yield tokenizer.encode(text, add_special_tokens=False).ids
