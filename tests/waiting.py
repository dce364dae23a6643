"""The wait of a test for a state that comes in seconds."""

from __future__ import annotations

import time
from collections.abc import Callable

LIMIT_S = 240.0
"""Far beyond what a machine with other work takes."""


def wait_until(reached: Callable[[], object]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not reached():
        assert time.monotonic() < deadline, "not reached"
        time.sleep(0.05)
