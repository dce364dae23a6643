"""The parts of the run, and the time that each of them gets of the whole."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PLANNED: Final = 0.8
"""Share of its time box that a part plans with: its last case may take longer. At the end of the box it is ended."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of a part, or with an empty unit a remark in words."""

    case: str
    metric: str
    value: float | str
    unit: str


@dataclass(frozen=True, slots=True)
class Part:
    """One part: module `bench.gpu.parts.<module>` with a function `measure`. `weight` is its share of the time."""

    module: str
    title: str
    weight: float


PARTS: Final = (
    Part("peaks", "What the machine does at best", 6),
    Part("contract", "Contract tests of the local engine", 14),
    Part("sampling", "Sampler: tokens per second beside the limit of the memory", 22),
    Part("decoding", "One decoding step: kernels, attention, host", 8),
    Part("training", "Training step: MFU and memory", 22),
    Part("gap", "Logprobs of sampler and trainer", 8),
    Part("sharing", "Common prefixes once, on and off", 8),
    Part("learning", "Learning of nano, beside the CPU", 18),
    Part("vllm", "vLLM beside the trainer: sleep and wake", 10),
)


@dataclass(frozen=True, slots=True)
class PartReport:
    """The outcome of one part. `failure` is None if it came to its end; figures from before a failure are kept."""

    module: str
    title: str
    box_s: float
    took_s: float
    figures: tuple[Figure, ...]
    failure: str | None


def run_parts(
    parts: Sequence[Part], device: str, seconds: float, directory: Path, announce: Callable[[str], None]
) -> Iterator[PartReport]:
    """Run every part, each within its share of the time that is left, and yield its report."""
    deadline = time.monotonic() + seconds
    peaks: Mapping[str, float] = {}
    for number, part in enumerate(parts):
        box_s = share(max(0.0, deadline - time.monotonic()), [each.weight for each in parts[number:]])
        announce(f"bench: {part.module}, up to {box_s:.0f} s")
        report = run_part(part, device, box_s, directory, peaks)
        if part.module == "peaks":
            peaks = {figure.metric: figure.value for figure in report.figures if isinstance(figure.value, float)}
        yield report


def share(seconds: float, weights: Sequence[float]) -> float:
    """Return the part of the seconds that the first weight is entitled to."""
    return seconds * weights[0] / sum(weights)


def run_part(part: Part, device: str, box_s: float, directory: Path, peaks: Mapping[str, float]) -> PartReport:
    """Run one part in a process of its own: an error of a GPU spoils every later use of it in the same process."""
    figures, log = directory / f"{part.module}.jsonl", directory / f"{part.module}.log"
    # A point in time and not a number of seconds: the imports of the child count too.
    order = {
        "module": part.module, "device": device, "deadline": time.time() + PLANNED * box_s,
        "directory": str(directory), "figures": str(figures), "peaks": dict(peaks),
    }  # fmt: skip
    began = time.monotonic()
    with log.open("wb") as output:
        child = subprocess.Popen(
            [sys.executable, "-m", "bench.gpu.child", json.dumps(order)],
            cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
    try:
        code = child.wait(box_s)
        failure = None if code == 0 else f"ended with code {code}: {_last_line(log)}"
    except subprocess.TimeoutExpired:
        failure = f"ended at its time box of {box_s:.0f} s"
    finally:
        _end_group(child)
    return PartReport(part.module, part.title, box_s, time.monotonic() - began, read_figures(figures), failure)


def read_figures(path: Path) -> tuple[Figure, ...]:
    """Return the whole lines of a file of figures, whose last line may be cut off."""
    if not path.is_file():
        return ()
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    return tuple(Figure(**json.loads(line)) for line in lines)


def _end_group(child: subprocess.Popen[bytes]) -> None:
    """End the child and whatever it has started in its process group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1].strip()[:300] if lines else "it wrote nothing"
