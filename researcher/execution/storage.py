"""The storage that a study writes on: how much of it is free, and the wait while it is full or a database is locked.

Place in the flow: launch asks for the free space before each run, monitor looks again from time to time. Where
something could not be stored, session.py begins its work anew once `await_storage` returns, as after a crash; monitor,
evaluate and checkpoint_scores have work in the background done again that met such an error, for it says nothing of a
run. Only this machine's disks are looked at: a server that somebody else started watches its own. This module removes
nothing.
"""

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
"""A day: what is not mended by then needs a person, who resumes the study."""

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


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


def is_storage_outage(error: BaseException) -> bool:
    """Whether nothing is wrong but that something could not be written or read now."""
    if isinstance(error, StoreUnavailable):
        return error.may_pass
    # The checkpoints of the loop are in a database of their own, which LangGraph's saver writes.
    return isinstance(error, sqlite3.OperationalError) or (isinstance(error, OSError) and error.errno in _FULL)


def await_storage(
    try_to_store: Callable[[], object], error: BaseException, *, sleep: Callable[[float], None] = time.sleep
) -> float:
    """Return, once `try_to_store` raises no storage outage, for how many seconds that took; `error` was the first.

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
