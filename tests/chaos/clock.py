"""A wall clock that jumps, for processes that are started with it.

Time since the machine was started is left alone. Debian's libfaketime breaks sleeps up to a moment of that time, so
clock.c is compiled.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("clock.c")
COMPILE_TIMEOUT_S = 120


def compile_library(folder: Path) -> Path | None:
    """The library that processes are started with, in this folder; None if there is no C compiler here."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    library = folder / "clock.so"
    command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(library), str(SOURCE), "-ldl"]
    done = subprocess.run(command, capture_output=True, timeout=COMPILE_TIMEOUT_S, check=False)
    return library if done.returncode == 0 else None


@dataclass(slots=True)
class Clock:
    """`file` says how many seconds the clock is off; it lies on a disk that is never full."""

    file: Path
    library: Path
    offset_s: int = 0

    def __post_init__(self) -> None:
        self.move(0)

    @property
    def env(self) -> dict[str, str]:
        """What a process has to be started with to read this clock."""
        return {"LD_PRELOAD": str(self.library), "CHAOS_CLOCK_FILE": str(self.file)}

    def move(self, by_s: int) -> None:
        """Set the clock forward, or back by a negative number of seconds."""
        self.offset_s += by_s
        draft = self.file.with_suffix(".draft")
        draft.write_text(f"{self.offset_s}\n")
        draft.replace(self.file)
