"""What goes wrong with files: a disk that is full for a while, and a database that somebody else holds locked."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import threading
from contextlib import closing, suppress
from pathlib import Path

FILLER = ".filler"
HOLD_TIMEOUT_S = 5.0
_BLOCK = 1 << 20


class SmallDisk:
    """A file system in memory at `path`, of `size_mb` MiB. `mount` needs the right to mount."""

    def __init__(self, path: Path, size_mb: int) -> None:
        self.path = path
        self._size_mb = size_mb
        self.is_mounted = False

    def mount(self) -> bool:
        """Whether it could be mounted; else `path` is a plain folder."""
        self.path.mkdir(parents=True, exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={self._size_mb}m,mode=700", "tmpfs", str(self.path)]
        with suppress(OSError):
            self.is_mounted = subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0
        return self.is_mounted

    def unmount(self) -> None:
        if self.is_mounted:
            # A process that was killed a moment ago may still have a file open.
            subprocess.run(["umount", "--lazy", str(self.path)], capture_output=True, timeout=60, check=True)
            self.is_mounted = False

    def fill_for(self, seconds: float, stop: threading.Event) -> None:
        """Leave no byte for so long, however often somebody frees some, or until `stop` is set."""
        filler = self.path / FILLER
        ends = threading.Event()
        timer = threading.Timer(seconds, ends.set)
        timer.start()
        try:
            with filler.open("ab") as file:
                while not (ends.is_set() or stop.is_set()):
                    with suppress(OSError):
                        free = shutil.disk_usage(self.path).free
                        os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, min(free, _BLOCK) or 1)
                        continue
                    ends.wait(0.05)
        finally:
            timer.cancel()
            filler.unlink(missing_ok=True)


def hold_database(path: Path) -> sqlite3.Connection | None:
    """An exclusive transaction of another process, during which nobody else writes; None if it cannot be had now."""
    connection = sqlite3.connect(path, timeout=HOLD_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("BEGIN EXCLUSIVE")
    except sqlite3.OperationalError:
        connection.close()
        return None
    return connection


def let_go(held: sqlite3.Connection, after_s: float, stop: threading.Event) -> None:
    """End the transaction after so long, or once `stop` is set."""
    stop.wait(after_s)
    with closing(held):
        held.execute("ROLLBACK")
