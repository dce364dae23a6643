"""The figures of a benchmark and the conditions under which it ran."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from swarm import __version__

GIT_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Result:
    """One figure. `case` is what varies within a benchmark, `unit` that of `value`."""

    benchmark: str
    case: str
    metric: str
    value: float
    unit: str


@dataclass(frozen=True, slots=True)
class Conditions:
    """The place and the time of a benchmark. `load_1m` is the load average before it began; what it adds is not in it.

    `git_sha` ends in `-dirty` if tracked files were changed, and is None outside a checkout.
    """

    date: str
    version: str
    git_sha: str | None
    cpu: str
    cores: int
    load_1m: float
    seconds: float


def read_conditions(seconds: float) -> Conditions:
    """Return the present conditions, for a benchmark that measures each case for `seconds`."""
    return Conditions(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        version=__version__,
        git_sha=_git_sha(),
        cpu=_cpu_model(),
        cores=os.cpu_count() or 1,
        load_1m=round(os.getloadavg()[0], 2),
        seconds=seconds,
    )


def to_row(result: Result, conditions: Conditions) -> dict[str, Any]:
    """Return a flat row, so that any data frame reads it."""
    return {**asdict(conditions), **asdict(result)}


def _git_sha() -> str | None:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=GIT_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
