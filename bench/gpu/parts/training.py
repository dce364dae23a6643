"""Training steps of random models: how many of the device's products per second they use, and how much memory."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench.gpu.measurement import Measurement
from bench.gpu.models import ModelShape, build_model, random_batch, shapes
from swarm.backends.local.learning.learner import Learner
from swarm.backends.local.model.adapter import add_adapter
from swarm.job import TrainJob
from swarm.types import TrainBatch

TINY_LR = 1e-6
"""The rewards are made up, and learning from them must not drive the weights anywhere."""
LORA_RANK = 16
MOST_STEPS = 8
MODES: dict[str, dict[str, Any]] = {
    "full": {},
    "full, gradient checkpointing": {"enable_gradient_checkpointing": True},
    f"LoRA rank {LORA_RANK}": {"lora_rank": LORA_RANK},
}


@dataclass(frozen=True, slots=True)
class BatchSize:
    """The tokens of a training step. `pass_tokens` is the largest microbatch."""

    episodes: int
    prompt: int
    completion: int
    pass_tokens: int


def measure(measurement: Measurement) -> None:
    """Add time, MFU and memory of a step, for two models and three ways to train them."""
    size = BatchSize(16, 256, 768, 4096) if measurement.on_gpu else BatchSize(4, 32, 32, 256)
    left = len(MODES) * 2
    for shape in shapes(measurement):
        batch = random_batch(shape, tasks=size.episodes // 2, repeats=2, prompt=size.prompt, completion=size.completion)
        for mode, settings in MODES.items():
            seconds, left = measurement.left_s / left, left - 1
            with measurement.case(f"{shape.name} {measurement.dtype_name}, {mode}"):
                _measure_mode(measurement, shape, size, batch, mode, settings, seconds)


def _measure_mode(
    measurement: Measurement,
    shape: ModelShape,
    size: BatchSize,
    batch: TrainBatch,
    mode: str,
    settings: dict[str, Any],
    seconds: float,
) -> None:
    deadline = time.monotonic() + seconds
    settings = {"share_prefixes": "off", "ppo_max_token_len": size.pass_tokens, **settings}
    learner = build_learner(measurement, shape, settings)
    measurement.reset_peak()
    durations_s, _ = timed_steps(measurement, learner, batch, deadline)
    step_s, case = median(durations_s), f"{shape.name} {measurement.dtype_name}, {mode}"
    products = products_of_step(shape, size, is_adapter="lora_rank" in settings)
    measurement.add(case, "step", step_s, "s")
    measurement.add(case, "tokens_per_second", size.episodes * (size.prompt + size.completion) / step_s, "tokens/s")
    measurement.add(case, "products", products / step_s / 1e12, "TFLOP/s")
    if peak := measurement.peaks.get(f"matmul_{measurement.dtype_name}"):
        measurement.add(case, "mfu", 100 * products / step_s / 1e12 / peak, "%")
    measurement.add(case, "peak_memory", measurement.peak_gib(), "GiB")


def build_learner(measurement: Measurement, shape: ModelShape, settings: dict[str, Any]) -> Learner:
    """Return a learner of a new random model on the device."""
    job = TrainJob.model_validate({"lr": TINY_LR, "n_gpu": int(measurement.on_gpu), **settings}).resolve()
    model = build_model(shape, measurement.device, measurement.dtype)
    if job.lora_rank:
        add_adapter(model, job)
    return Learner(model, job)


def timed_steps(
    measurement: Measurement, learner: Learner, batch: TrainBatch, deadline: float
) -> tuple[list[float], dict[str, float]]:
    """Return the seconds of steps until the deadline, at least one, and the metrics of an untimed first one."""
    durations_s: list[float] = []
    metrics = learner.step(batch).metrics
    while not durations_s or (len(durations_s) < MOST_STEPS and time.monotonic() + durations_s[-1] < deadline):
        measurement.wait()
        began = time.perf_counter()
        learner.step(batch)
        measurement.wait()
        durations_s.append(time.perf_counter() - began)
    return durations_s, metrics


def products_of_step(shape: ModelShape, size: BatchSize, *, is_adapter: bool) -> float:
    """Return the floating-point operations of a step: forward pass, gradients of inputs, gradients of weights.

    The output head sees the trained tokens alone. The products of an adapter itself are left out.
    """
    length, trained = size.prompt + size.completion, size.episodes * size.completion
    passes = 2 if is_adapter else 3
    of_weights = 2 * (shape.of_layers * size.episodes * length + shape.of_head * trained)
    # Queries by keys, and weights by values; a token attends to half of its sequence on average.
    of_attention = 2 * shape.layers * shape.hidden * size.episodes * length**2
    return passes * of_weights + 3 * of_attention
