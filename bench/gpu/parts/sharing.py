"""Training steps of groups with long common prompts, with each prefix computed once and without."""

from __future__ import annotations

import time
from statistics import median

from bench.gpu.measurement import Measurement
from bench.gpu.models import random_batch, shapes
from bench.gpu.parts.training import build_learner, timed_steps

WAYS = ("off", "auto")


def measure(measurement: Measurement) -> None:
    """Add time, tokens and memory of a step for both ways, and how far their gradients are apart."""
    shape = shapes(measurement)[0]
    if measurement.on_gpu:
        batch = random_batch(shape, tasks=8, repeats=8, prompt=512, completion=64)
    else:
        batch = random_batch(shape, tasks=2, repeats=6, prompt=192, completion=16)
    settings = {"ppo_max_token_len": 8192}
    norms: dict[str, float] = {}
    for number, way in enumerate(WAYS):
        case = f"{shape.name} {measurement.dtype_name}, share_prefixes {way}"
        with measurement.case(case):
            deadline = time.monotonic() + measurement.left_s / (len(WAYS) - number)
            learner = build_learner(measurement, shape, {**settings, "share_prefixes": way})
            measurement.reset_peak()
            durations_s, metrics = timed_steps(measurement, learner, batch, deadline)
            measurement.add(case, "step", median(durations_s), "s")
            measurement.add(case, "peak_memory", measurement.peak_gib(), "GiB")
            norms[way] = metrics["actor/grad_norm"]
            for metric, unit in (("tokens", "tokens"), ("tokens_unshared", "tokens"), ("fallbacks", "")):
                if (value := metrics.get(f"sharing/{metric}")) is not None:
                    measurement.add(case, metric, value, unit)
    if len(norms) == len(WAYS):
        difference = abs(norms["auto"] / norms["off"] - 1) if norms["off"] else abs(norms["auto"])
        measurement.add("both", "relative_difference_of_gradient_norms", difference, "")
