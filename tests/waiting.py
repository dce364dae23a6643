"""Waits of a test for a state that comes in seconds, a clock that is set, and a database that others hold locked."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

LIMIT_S = 240.0
"""Far beyond what a machine with other work takes."""


def wait_until(reached: Callable[[], object]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not reached():
        assert time.monotonic() < deadline, "not reached"
        time.sleep(0.05)


@dataclass
class SetClock:
    """A clock that stands still unless it is set."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def locked(path: Path | str) -> Iterator[None]:
    """Hold an SQLite database, so that nobody else reads or writes it."""
    with closing(sqlite3.connect(path, timeout=60, isolation_level=None)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        yield
        connection.execute("ROLLBACK")
