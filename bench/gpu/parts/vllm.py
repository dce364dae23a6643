"""vLLM as the sampler on the trainer's own device: the time to fall asleep, to wake, and to get new weights."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median

import torch

from bench.gpu.measurement import GIB, Measurement
from bench.gpu.models import shapes, write_model
from bench.gpu.parts.gap import sampled_batch
from swarm.backends.local.engine import build_worker
from swarm.backends.local.pair import build_pair
from swarm.config import ServerConfig
from swarm.job import TrainJob

VLLM = "SWARM_VLLM_PYTHON"
ROUNDS = 3
LOOK_LIMIT_S = 60.0


def measure(measurement: Measurement) -> None:
    """Add seconds and memory of sleeping and waking, and a training step between them."""
    python = Path(os.environ.get(VLLM, sys.executable))
    if not _has_vllm(python):
        measurement.add("vLLM", "not installed", f"neither {VLLM} nor this interpreter has it: nothing was measured")
    elif not measurement.on_gpu:
        measurement.add("vLLM", "not measured", "on a CPU the sampler does not sleep")
    else:
        with measurement.case("vLLM"):
            asyncio.run(_measure(measurement, python))


def _has_vllm(python: Path) -> bool:
    look = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"
    return subprocess.run([python, "-c", look], timeout=LOOK_LIMIT_S, check=False).returncode == 0


async def _measure(measurement: Measurement, python: Path) -> None:
    shape = shapes(measurement)[0]
    model = write_model(shape, measurement)
    config = ServerConfig(home=measurement.directory / "home", sampler_pythons={"vllm": python})
    job = TrainJob.model_validate({"model": str(model), "n_gpu": 1, "sampler": "vllm", "lr": 1e-6}).resolve()
    worker = build_worker(config, measurement.directory / "vllm-worker.log")
    pair = build_pair(job, "vllm", model, config, worker, measurement.directory, lambda: [0])
    began = time.monotonic()
    try:
        await pair.start()
        measurement.add("vLLM", "start", time.monotonic() - began, "s")
        slept, woke = [], []
        for _ in range(ROUNDS):
            awake = _free_gib()
            slept.append(await _timed(pair.sampler.suspend))
            asleep = _free_gib()
            woke.append(await _timed(pair.sampler.resume))
            measurement.add("vLLM", "memory_freed_by_sleep", asleep - awake, "GiB")
        measurement.add("vLLM", "falling_asleep", median(slept), "s")
        measurement.add("vLLM", "waking", median(woke), "s")
        report = await pair.trainer.train(await sampled_batch(pair, shape.vocabulary))
        measurement.add("vLLM", "publishing_weights", report.metrics["timing_s/publish_weights"], "s")
        measurement.add("vLLM", "weight_version_after_a_step", float(report.weight_version.version), "")
    finally:
        await pair.end()


async def _timed(step: Callable[[], Awaitable[None]]) -> float:
    began = time.monotonic()
    await step()
    return time.monotonic() - began


def _free_gib() -> float:
    return torch.cuda.mem_get_info()[0] / GIB
