"""An event loop whose seconds pass at once."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
SIGNAL_S = 0.01
"""How often a loop with nothing due looks for a signal, in real seconds."""


class Instant(selectors.SelectSelector):
    """A selector that never waits: the awaited time has passed at once."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            # No timer is due: only a signal can still arrive.
            return super().select(SIGNAL_S)
        self.now += max(0.0, timeout)
        return []


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop whose time begins at 0 and is that of its selector."""

    def __init__(self) -> None:
        self._instant = Instant()
        super().__init__(self._instant)

    def time(self) -> float:
        return self._instant.now


def run_simulated(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which must not wait for threads, sockets or processes."""
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        return runner.run(work)
