"""The anatomy of a decoding step: what the device computes, what the host costs, and which attention is chosen."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from bench.gpu.measurement import Measurement
from bench.gpu.models import build_model, shapes
from swarm.backends.local.decoding.forward import RowTokens, SlotForward
from swarm.backends.local.decoding.sampling import Draw, sample
from swarm.types import SamplingParams

PROFILED_STEPS = 3
KERNELS_SHOWN = 6
NAMES_OF_ATTENTION = ("attention", "flash", "fmha", "sdpa", "cudnn")


@dataclass(frozen=True, slots=True)
class StepSizes:
    """The rows of each case, the tokens that they have at first, and the lengths at which they are measured."""

    rows: tuple[int, ...]
    context: int
    lengths: int


def measure(measurement: Measurement) -> None:
    """Add times and kernels of decoding steps for several numbers of rows."""
    shape = shapes(measurement)[0]
    sizes = StepSizes((1, 32, 256), 200, 12) if measurement.on_gpu else StepSizes((1, 32), 48, 4)
    model = build_model(shape, measurement.device, measurement.dtype)
    for rows in sizes.rows:
        case = f"{shape.name} {measurement.dtype_name}, {rows} rows"
        with measurement.case(case), torch.inference_mode():
            _Steps(measurement, case, sizes, model, shape.vocabulary, rows).report()


class _Steps:
    """Decoding steps of rows that have the same length."""

    def __init__(
        self,
        measurement: Measurement,
        case: str,
        sizes: StepSizes,
        model: torch.nn.Module,
        vocabulary: int,
        rows: int,
    ) -> None:
        self._measurement, self._case, self._sizes, self._rows = measurement, case, sizes, rows
        self._forward = SlotForward(model, sizes.context + 4 * sizes.lengths)
        random = np.random.default_rng(0)
        self._forward.fill(
            0, [RowTokens(0, random.integers(0, vocabulary, sizes.context).tolist()) for _ in range(rows)]
        )
        self._draws = [Draw(SamplingParams(max_tokens=1), uniform) for uniform in random.random(rows)]

    def report(self) -> None:
        begin = self._sizes.context
        for length in range(begin, begin + 4):
            self._decode(length)
        first, again, host, sampled = [], [], [], []
        for length in range(begin + 4, begin + 4 + self._sizes.lengths):
            first.append(self._decode(length)[1])
            host_s, whole_s, logits = self._decode(length)
            host.append(host_s)
            again.append(whole_s)
            began = time.perf_counter()
            sample(logits, self._draws)
            sampled.append(time.perf_counter() - began)
        for metric, seconds in (
            ("step_at_a_new_length", first), ("step_at_a_known_length", again), ("host_part_of_step", host),
            ("sampling_from_logits", sampled),
        ):  # fmt: skip
            self._measurement.add(self._case, metric, 1000 * median(seconds), "ms")
        self._profile(median(again))

    def _decode(self, length: int) -> tuple[float, float, torch.Tensor]:
        """Return the seconds until the host was done, those until the device was, and the logits."""
        self._measurement.wait()
        began = time.perf_counter()
        logits = self._forward.decode([1] * self._rows, [length] * self._rows)
        host_s = time.perf_counter() - began
        self._measurement.wait()
        return host_s, time.perf_counter() - began, logits

    def _profile(self, step_s: float) -> None:
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._measurement.on_gpu else [])]
        with profile(activities=activities) as found:
            for _ in range(PROFILED_STEPS):
                self._decode(self._sizes.context + 4)
        spent = sorted(
            ((event.key, self._self_s(event), event.count) for event in found.key_averages()),
            key=lambda each: -each[1],
        )
        total = sum(seconds for _, seconds, _ in spent)
        launched = sum(count for _, seconds, count in spent if seconds > 0)
        self._measurement.add(self._case, "kernels_per_step", launched / PROFILED_STEPS, "")
        if self._measurement.on_gpu:
            self._measurement.add(self._case, "device_is_busy", 100 * total / PROFILED_STEPS / step_s, "%")
        shown = [
            each for place, each in enumerate(spent)
            if place < KERNELS_SHOWN or any(name in each[0].lower() for name in NAMES_OF_ATTENTION)
        ]  # fmt: skip
        for key, seconds, count in shown:
            if seconds > 0:
                share = f"{100 * seconds / total:.0f} % in {count / PROFILED_STEPS:g} calls: {key[:100]}"
                self._measurement.add(self._case, "kernel", share)

    def _self_s(self, event: Any) -> float:
        """Return the seconds of a kernel on a GPU, or of an operation itself on a CPU."""
        if not self._measurement.on_gpu:
            return event.self_cpu_time_total / 1e6
        return event.self_device_time_total / 1e6 if event.device_type == torch.autograd.DeviceType.CUDA else 0.0
