"""A wall clock that jumps, for processes that are started with it: libfaketime reads how far off it is from a file.

Place in the flow: deployment.py gives each host of its own, which is the researcher or a server, a clock; the injector
moves it. Time since the machine was started is left alone, as it is where somebody sets a clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

LIBRARIES = (
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib/faketime/libfaketimeMT.so.1",
)


def find_library() -> Path | None:
    """Where Debian's package libfaketime has it; None if that is not installed."""
    return next((path for name in LIBRARIES if (path := Path(name)).is_file()), None)


@dataclass(slots=True)
class Clock:
    """`file` lies on a disk that is never full."""

    file: Path
    library: Path
    offset_s: int = 0

    def __post_init__(self) -> None:
        self.move(0)

    @property
    def env(self) -> dict[str, str]:
        """What a process has to be started with to read this clock."""
        return {
            "LD_PRELOAD": str(self.library),
            "FAKETIME_TIMESTAMP_FILE": str(self.file),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_DISABLE_SHM": "1",
            "NO_FAKE_STAT": "1",
        }

    def move(self, by_s: int) -> None:
        """Set the clock forward, or back by a negative number of seconds."""
        self.offset_s += by_s
        draft = self.file.with_suffix(".draft")
        draft.write_text(f"{self.offset_s:+d}\n")
        draft.replace(self.file)
