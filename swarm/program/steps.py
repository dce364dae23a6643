"""Each training step told as it comes: which step, and the mean reward of its batch.

Place in the flow: the commands that train keep a watch open around `train` (training.py). This module knows nothing of
where steps are shown.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress

from swarm.client import SwarmClient
from swarm.errors import SwarmError

REWARD = "critic/score/mean"
WATCH_S = 0.5
LAST_TIMEOUT_S = 60.0
"""A server that is asked for its metrics while it goes away may keep the watcher for so long at most."""


@contextmanager
def watch_steps(client: SwarmClient, on_step: Callable[[int, float], None]) -> Generator[None]:
    """Call `on_step` with each step that is done from now on and its mean reward (nan if it has none), from a thread.

    What was trained while the server could not be reached is told afterwards. Raises what the server answers at first,
    and at the end if nothing else was raised inside.
    """
    ended = threading.Event()
    last = client.status().step

    def tell() -> None:
        nonlocal last
        for point in client.metrics(after_step=last):
            last = point.step
            on_step(point.step, point.metrics.get(REWARD, math.nan))

    def watch() -> None:
        while not ended.wait(WATCH_S):
            with suppress(SwarmError):
                tell()

    watcher = threading.Thread(target=watch, name="steps", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join(LAST_TIMEOUT_S)
    tell()
