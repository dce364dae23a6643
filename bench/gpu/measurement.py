"""The figures of one part while it runs: each is written at once, so that a part that is ended loses none."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import torch

from bench.gpu.schedule import Figure

PEAK_FILE = Path("/proc/self/clear_refs")
STATUS_FILE = Path("/proc/self/status")
GIB = 2**30


class Measurement:
    """The device and time of one part, and the file of its figures."""

    def __init__(self, device: str, seconds: float, directory: Path, figures: Path, peaks: dict[str, float]) -> None:
        """Set the part's time. `directory` is for files; `peaks` are what the machine was measured to do at best."""
        self.device = torch.device(device)
        self.directory = directory
        self.peaks = peaks
        self._figures = figures
        self._deadline = time.monotonic() + seconds

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    @property
    def dtype(self) -> torch.dtype:
        """The number format of training and sampling: few CPUs multiply bfloat16 quickly."""
        return torch.bfloat16 if self.on_gpu else torch.float32

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @property
    def left_s(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    def add(self, case: str, metric: str, value: float | str, unit: str = "") -> None:
        with self._figures.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(Figure(case, metric, value, unit))) + "\n")

    def wait(self) -> None:
        """Wait until the device has done all of its work."""
        if self.on_gpu:
            torch.cuda.synchronize()

    @contextmanager
    def case(self, name: str) -> Generator[None]:
        """Record a failure inside as a figure of this case, so that the other cases go on."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - recorded as data
            first_line = (str(error).strip() or "no message").split("\n", 1)[0]
            self.add(name, "failure", f"{type(error).__name__}: {first_line}")
        # After a failure too, and after the frames of the failure are gone: the next case needs the memory.
        gc.collect()
        torch.cuda.empty_cache()

    def reset_peak(self) -> None:
        """Begin a new measurement of the largest memory in use."""
        if self.on_gpu:
            torch.cuda.reset_peak_memory_stats()
        else:
            PEAK_FILE.write_text("5", encoding="ascii")

    def peak_gib(self) -> float:
        """Return the largest memory since `reset_peak`: of tensors on a GPU, of the whole process on a CPU."""
        if self.on_gpu:
            return torch.cuda.max_memory_allocated() / GIB
        lines = STATUS_FILE.read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")) / GIB
