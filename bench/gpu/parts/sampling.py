"""Tokens per second of the sampler in its worker, beside what the bandwidth of the memory allows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np

from bench.gpu.measurement import Measurement
from bench.gpu.models import ModelShape, shapes, write_model
from swarm.backends.local.engine import LocalSampler, build_local, build_worker
from swarm.backends.pairing import ProcessTrainer
from swarm.backends.process.worker_process import WorkerProcess
from swarm.config import ServerConfig
from swarm.job import TrainJob
from swarm.types import SamplingParams

CONCURRENCY = (1, 8, 32, 128, 512)
PROMPT_TOKENS, COMPLETION_TOKENS = 64, 128
WARM_UP = 0.3
SHORTEST_CASE_S = 1.0
BOOT_LIMIT_S = 600.0
"""More than any start takes: the time box of the part is what bounds it."""


def measure(measurement: Measurement) -> None:
    """Add tokens per second for each number of requests at a time."""
    asyncio.run(_measure(measurement))


def new_worker(measurement: Measurement) -> WorkerProcess:
    """Return a worker, not yet started: a part uses one for all of its jobs, because a start takes seconds."""
    return build_worker(ServerConfig(), measurement.directory / "worker.log")


@asynccontextmanager
async def local_engine(
    measurement: Measurement, worker: WorkerProcess, model: Path | str, **settings: Any
) -> AsyncGenerator[tuple[LocalSampler, ProcessTrainer]]:
    """Start sampler and trainer of one job. After a failure the worker ends too, and starts anew with the next job."""
    given = {"model": str(model), "n_gpu": int(measurement.on_gpu), "sampler": "local", **settings}
    config = ServerConfig(max_running_requests=max(CONCURRENCY), boot_timeout_s=BOOT_LIMIT_S)
    sampler, trainer = build_local(TrainJob.model_validate(given), config, worker)
    try:
        await sampler.start()
        yield sampler, trainer
        await sampler.stop()
    except Exception:
        await worker.stop()
        raise


async def _measure(measurement: Measurement) -> None:
    shape = shapes(measurement)[0]
    model, worker = write_model(shape, measurement), new_worker(measurement)
    try:
        async with local_engine(measurement, worker, model, dtype=measurement.dtype_name) as (sampler, _):
            await _sample(measurement, sampler, shape)
    finally:
        await worker.stop()


async def _sample(measurement: Measurement, sampler: LocalSampler, shape: ModelShape) -> None:
    prompts = random_prompts(shape.vocabulary)
    seconds = max(SHORTEST_CASE_S, measurement.left_s / len(CONCURRENCY))
    for count in CONCURRENCY:
        case = f"{shape.name} {measurement.dtype_name}, {count} at a time"
        with measurement.case(case):
            await _drive(sampler, prompts, count, WARM_UP * seconds)
            measured_s = (1 - WARM_UP) * seconds
            tokens = await _drive(sampler, prompts, count, measured_s)
            _report(measurement, case, shape, count, tokens / measured_s)


async def _drive(sampler: LocalSampler, prompts: Iterator[list[int]], concurrency: int, seconds: float) -> int:
    """Keep `concurrency` requests going for `seconds`, and return the number of their tokens.

    Requests under way at the end are aborted; their tokens count.
    """
    deadline = time.perf_counter() + seconds
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_sample_until(deadline, sampler, prompts)) for _ in range(concurrency)]
    except ExceptionGroup as failures:
        # A worker that dies fails every request with the same reason.
        raise failures.exceptions[0] from failures
    return sum(task.result() for task in tasks)


async def _sample_until(deadline: float, sampler: LocalSampler, prompts: Iterator[list[int]]) -> int:
    params, tokens = SamplingParams(max_tokens=COMPLETION_TOKENS, ignore_eos=True), 0
    while time.perf_counter() < deadline:
        async with aclosing(sampler.generate("bench", next(prompts), params)) as deltas:
            async for delta in deltas:
                if time.perf_counter() >= deadline:
                    break
                tokens += len(delta.token_ids_T)
    return tokens


def _report(measurement: Measurement, case: str, shape: ModelShape, count: int, rate: float) -> None:
    measurement.add(case, "tokens_per_second", rate, "tokens/s")
    if "bandwidth" in measurement.peaks:
        limit = limit_of_memory(
            shape, count, 1e9 * measurement.peaks["bandwidth"], measurement.dtype.itemsize,
            PROMPT_TOKENS + COMPLETION_TOKENS / 2,
        )  # fmt: skip
        measurement.add(case, "limit_of_memory", limit, "tokens/s")
        measurement.add(case, "share_of_limit", 100 * rate / limit, "%")


def limit_of_memory(shape: ModelShape, count: int, bandwidth: float, itemsize: int, context: float) -> float:
    """Return the most tokens per second of `count` requests with `context` cached tokens each.

    `bandwidth` is in bytes per second.
    """
    weights = shape.of_layers + shape.of_head
    return count * bandwidth / (itemsize * (weights + count * context * shape.cached_numbers))


def random_prompts(vocabulary: int) -> Iterator[list[int]]:
    """Yield random prompts without end; no two begin alike, so that none is computed from another's cache."""
    random = np.random.default_rng(0)
    while True:
        yield random.integers(0, vocabulary, PROMPT_TOKENS).tolist()
