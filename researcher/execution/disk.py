"""Free space where a study writes, and the least there may be before another run is launched.

Place in the flow: launch asks before each run, monitor looks again from time to time. Only this machine's disks are
looked at: a server that somebody else started watches its own. This module removes nothing.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

GB = 10**9


def free_bytes(path: Path) -> int:
    """What the file system of a path has left for this user; of one that does not exist yet, its nearest folder."""
    place = path.absolute()
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free


@dataclass(frozen=True, slots=True)
class FreeSpace:
    """The fullest of the file systems of a study: `path` lies on it, `free` and `limit` are in bytes."""

    path: Path
    free: int
    limit: int

    @property
    def is_low(self) -> bool:
        return self.free < self.limit

    def __str__(self) -> str:
        return f"{self.free / GB:.2f} GB free at {self.path}, the limit is {self.limit / GB:g} GB"


@dataclass(slots=True)
class DiskGuard:
    """Looks at the file systems of `places`; below `limit` bytes a study launches nothing. 0 is no limit.

    `is_waiting` is set while the study has been told that the disk is low; `looked_at` is when that was looked at last,
    in seconds of the monotonic clock.
    """

    places: Sequence[Path]
    limit: int
    measure: Callable[[Path], int] = free_bytes
    is_waiting: bool = False
    looked_at: float = 0.0

    def look(self) -> FreeSpace:
        """Raises OSError."""
        free, path = min((self.measure(place), os.fspath(place)) for place in self.places)
        return FreeSpace(Path(path), free, self.limit)
