"""The storage that a study writes to: its free space, and the wait while it is full or a database is locked."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments_db import StoreUnavailable

logger = logging.getLogger(__name__)

GB = 10**9
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0
PATIENCE_S = 86_400.0
"""Seconds of a day: storage that still fails by then needs a person, who resumes the study."""

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def free_bytes(path: Path) -> int:
    """Return the bytes that this user may still write at a path, or at its nearest existing parent."""
    place = path.absolute()
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free


@dataclass(frozen=True, slots=True)
class FreeSpace:
    """The space of the fullest of a study's file systems: `path` lies on it, `free` and `limit` are in bytes."""

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
    """A guard of the file systems of `places`: below `limit` bytes a study launches nothing. 0 means no limit.

    `is_waiting` is set once the study has reported that the disk is low. `looked_at` is the time of the last look in
    monotonic seconds.
    """

    places: Sequence[Path]
    limit: int
    measure: Callable[[Path], int] = free_bytes
    is_waiting: bool = False
    looked_at: float = 0.0

    def look(self) -> FreeSpace:
        """Return the space of the fullest file system. Raises OSError."""
        free, path = min((self.measure(place), os.fspath(place)) for place in self.places)
        return FreeSpace(Path(path), free, self.limit)


def is_storage_outage(error: BaseException) -> bool:
    """Return whether an error only says that something could not be written or read now."""
    if isinstance(error, StoreUnavailable):
        return error.may_pass
    # The checkpoints of the loop are in a database of their own, which LangGraph's saver writes.
    return isinstance(error, sqlite3.OperationalError) or (isinstance(error, OSError) and error.errno in _FULL)


def await_storage(
    try_to_store: Callable[[], object], error: BaseException, *, sleep: Callable[[float], None] = time.sleep
) -> float:
    """Wait until `try_to_store` raises no storage outage, and return the seconds waited; `error` was the first outage.

    Raises what `try_to_store` raises: any other error at once, an outage once it has lasted for PATIENCE_S.
    """
    logger.warning("the study waits until it can be stored: %s", " ".join(str(error).split()))
    began, pause_s = time.monotonic(), FIRST_PAUSE_S
    while True:
        sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        try:
            try_to_store()
        except Exception as still:
            if not is_storage_outage(still) or time.monotonic() - began > PATIENCE_S:
                raise
        else:
            return time.monotonic() - began
