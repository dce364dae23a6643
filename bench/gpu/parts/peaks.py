"""What the machine does at best: bytes per second of its memory, and products per second of large matrices."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch

from bench.gpu.measurement import GIB, Measurement

ROUNDS = 7


def measure(measurement: Measurement) -> None:
    """Add the bandwidth of a copy, counting bytes read and written, and products of square matrices."""
    if measurement.on_gpu:
        _describe(measurement)
    count = (2 * GIB if measurement.on_gpu else GIB // 4) // 4
    source = torch.ones(count, device=measurement.device)
    target = torch.empty_like(source)
    seconds = _best(measurement, lambda to=target, of=source: to.copy_(of))
    measurement.add("memory", "bandwidth", 2 * source.nbytes / seconds / 1e9, "GB/s")
    del source, target
    for dtype in (torch.bfloat16, torch.float32):
        size = (8192 if dtype == torch.bfloat16 else 4096) if measurement.on_gpu else 1024
        left = torch.randn(size, size, device=measurement.device).to(dtype)
        right = torch.randn(size, size, device=measurement.device).to(dtype)
        seconds = _best(measurement, lambda a=left, b=right: a @ b)
        name = str(dtype).removeprefix("torch.")
        measurement.add(f"{size} x {size} products", f"matmul_{name}", 2 * size**3 / seconds / 1e12, "TFLOP/s")


def _describe(measurement: Measurement) -> None:
    facts = torch.cuda.get_device_properties(0)
    measurement.add("device", "name", facts.name)
    measurement.add("device", "memory", facts.total_memory / GIB, "GiB")
    measurement.add("device", "multiprocessors", float(facts.multi_processor_count), "")
    measurement.add("device", "capability", f"{facts.major}.{facts.minor}")
    measurement.add("device", "cuda", str(torch.version.cuda))


def _best(measurement: Measurement, work: Callable[[], object]) -> float:
    """Return the median seconds of a few calls after two warm-ups; every call ends before the next begins."""
    found: list[float] = []
    for round_number in range(ROUNDS + 2):
        measurement.wait()
        began = time.perf_counter()
        work()
        measurement.wait()
        if round_number >= 2:
            found.append(time.perf_counter() - began)
    return median(found)
