"""Simulated time, and the parts that take it: sampler replicas and the gateway.

Place in the flow: simulation.py builds its simulated cluster of these. They know of tokens and calls, and nothing
of episodes, weights or training.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import selectors
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from bench.scale.setup import Cluster

T = TypeVar("T")
Place = asyncio.Future[None]
"""Of one who waits."""

SIGNAL_S = 0.01
"""How often a loop with nothing due looks for a signal, in real seconds."""
LEAST_TOKENS = 1e-6
"""What is left of a request that is done, but for rounding."""


class _Instant(selectors.SelectSelector):
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


class _SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is simulated and begins at 0."""

    def __init__(self) -> None:
        self._instant = _Instant()
        super().__init__(self._instant)

    def time(self) -> float:
        return self._instant.now


def run_simulated(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`, whose seconds pass at once.

    It must not wait for threads, sockets or processes.
    """
    with asyncio.Runner(loop_factory=_SimulatedLoop) as runner:
        return runner.run(work)


@dataclass(slots=True)
class SimulatedReplica:
    """Requests that share one sampler evenly. Work is in tokens that each open request has been given so far."""

    cluster: Cluster
    loop: asyncio.AbstractEventLoop
    tokens: float = 0.0
    paused: bool = False
    _given: float = 0.0
    _at: float = 0.0
    _served: list[tuple[float, int, Place]] = field(default_factory=list[tuple[float, int, Place]])
    _queue: deque[tuple[float, Place]] = field(default_factory=deque[tuple[float, Place]])
    _numbers: itertools.count[int] = field(default_factory=itertools.count)
    _timer: asyncio.TimerHandle | None = None

    @property
    def open(self) -> int:
        return len(self._served) + len(self._queue)

    def add(self, tokens: float) -> Place:
        self._advance()
        done: Place = self.loop.create_future()
        self._queue.append((tokens, done))
        self._refill()
        return done

    def pause(self, paused: bool) -> None:
        self._advance()
        self.paused = paused
        self._schedule()

    def _advance(self) -> None:
        now = self.loop.time()
        if self._served and not self.paused:
            each = (now - self._at) / self.cluster.token_s_at(len(self._served))
            self._given += each
            self.tokens += each * len(self._served)
        self._at = now

    def _refill(self) -> None:
        while self._queue and len(self._served) < self.cluster.max_num_seqs:
            tokens, done = self._queue.popleft()
            heapq.heappush(self._served, (self._given + tokens, next(self._numbers), done))
        self._schedule()

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._served and not self.paused:
            left = self._served[0][0] - self._given
            self._timer = self.loop.call_later(
                max(0.0, left) * self.cluster.token_s_at(len(self._served)), self._complete
            )

    def _complete(self) -> None:
        self._timer = None
        self._advance()
        while self._served and self._served[0][0] <= self._given + LEAST_TOKENS:
            done = heapq.heappop(self._served)[2]
            if not done.done():
                done.set_result(None)
        self._refill()


@dataclass(slots=True)
class Gateway:
    """A gateway that serves one call after the other. `busy_s` sums the waiting and the work of its calls."""

    calls: int = 0
    busy_s: float = 0.0
    _free_at: float = 0.0

    def enter(self, now: float, work_s: float) -> float:
        """Return the seconds until a call that comes now leaves towards the samplers."""
        self._free_at = max(self._free_at, now) + work_s
        self.calls += 1
        self.busy_s += self._free_at - now
        return self._free_at - now
