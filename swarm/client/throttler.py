"""Throttler: how many episodes of a client run at once, how fast they begin, and when a batch has enough of them.

Place in the flow: around begin_episode, in the program of the user. The server alone decides what a batch holds; this
keeps a client from making episodes that the batch has no room for. Room is counted from the server's own view, so that
all clients of a data source share it: what the batch still lacks, less what is already on its way. Unlike a cap on
this client's tasks it can neither starve (what was begun by a client that died is not counted for ever) nor overshoot
with the number of clients.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from swarm.client.async_client import AsyncSwarmClient
from swarm.client.client import SwarmClient
from swarm.errors import BadRequest, SwarmError
from swarm.schemas import EngineState, Status

# How old the view of the server's pool may be when an episode is let in; and how old when none is, for want of room.
VIEW_LIFE_S = 0.5
FULL_VIEW_LIFE_S = 0.1
# How soon those behind the first in the queue look whether they are the first; they are told as well.
LOOK_S = 5.0

_AGREEING = frozenset({"any_client_agrees", "all_clients_agree"})


@dataclass(slots=True, eq=False)
class _Waiter:
    """One episode in the queue. `wake` is called, from any thread, when it is admitted or has become the first."""

    wake: Callable[[], object]
    is_admitted: bool = False


class Throttler:
    """`with throttler: ...` around each episode, from any number of threads; `async with` from tasks.

    Episodes are let in in the order they came: while fewer than `max_running` run, at most `per_second` on average
    (without bursts), and, with a `client`, while the batch being filled lacks episodes of `data_source` (None: of any).
    That costs two status calls a second, ten while there is no room.
    """

    def __init__(
        self,
        client: SwarmClient | AsyncSwarmClient | None = None,
        *,
        data_source: str | None = None,
        max_running: int | None = None,
        per_second: float | None = None,
        ahead: float | None = None,
    ) -> None:
        """`ahead` is the room in batches: by default the batch being filled and as many after it as `max_staleness`
        allows; a fraction more makes up for episodes that fail. None turns another limit off. Raises BadRequest for a
        limit that lets nothing in."""
        for name, limit in (("max_running", max_running), ("per_second", per_second), ("ahead", ahead)):
            if limit is not None and not limit > 0:
                raise BadRequest(f"{name} must be above 0, got {limit}", param=name)
        self._client = client
        self._data_source = data_source
        self._max_running = math.inf if max_running is None else max_running
        self._spacing_s = 0.0 if per_second is None else 1.0 / per_second
        self._ahead = ahead
        self._lock = threading.Lock()
        self._looking = threading.Lock()
        self._waiting: deque[_Waiter] = deque()
        self._running = 0
        self._next_begin = 0.0
        self._room = math.inf if client is None else 0.0
        self._seen_at = -math.inf

    @property
    def running(self) -> int:
        """Episodes that were let in and have not left."""
        return self._running

    def __enter__(self) -> None:
        came = threading.Event()
        waiter = self._queue(came.set)
        try:
            while True:
                came.clear()
                if waiter.is_admitted:
                    return
                if self._may_look(waiter):
                    try:
                        self._look()
                    finally:
                        self._looking.release()
                came.wait(self._admit(waiter))
        except BaseException:
            self._withdraw(waiter)
            raise

    def __exit__(self, *_: object) -> None:
        self._leave()

    async def __aenter__(self) -> None:
        loop, came = asyncio.get_running_loop(), asyncio.Event()
        waiter = self._queue(lambda: loop.call_soon_threadsafe(came.set))
        try:
            while True:
                came.clear()
                if waiter.is_admitted:
                    return
                if self._may_look(waiter):
                    try:
                        await self._look_async()
                    finally:
                        self._looking.release()
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._admit(waiter)):
                        await came.wait()
        except BaseException:
            self._withdraw(waiter)
            raise

    async def __aexit__(self, *_: object) -> None:
        self._leave()

    def _queue(self, wake: Callable[[], object]) -> _Waiter:
        waiter = _Waiter(wake)
        with self._lock:
            self._waiting.append(waiter)
        return waiter

    def _admit(self, waiter: _Waiter | None = None) -> float:
        """Let in who may go; returns the seconds after which `waiter` looks again."""
        with self._lock:
            now = time.monotonic()
            while self._waiting and self._running < self._max_running and self._room >= 1 and now >= self._next_begin:
                first = self._waiting.popleft()
                first.is_admitted = True
                self._running += 1
                self._room -= 1
                self._next_begin = max(now, self._next_begin) + self._spacing_s
                first.wake()
                if self._waiting:
                    self._waiting[0].wake()
            if not self._waiting or self._waiting[0] is not waiter:
                return LOOK_S
            return min(self._view_life_s, max(0.001, self._next_begin - now) if self._spacing_s else LOOK_S)

    def _leave(self) -> None:
        with self._lock:
            self._running -= 1
        self._admit()

    def _withdraw(self, waiter: _Waiter) -> None:
        with self._lock:
            if waiter.is_admitted:
                self._running -= 1
            else:
                self._waiting.remove(waiter)
            if self._waiting:
                self._waiting[0].wake()

    @property
    def _view_life_s(self) -> float:
        return VIEW_LIFE_S if self._room >= 1 else FULL_VIEW_LIFE_S

    def _may_look(self, waiter: _Waiter) -> bool:
        """Whether it is on this waiter to ask the server; it then holds `_looking`."""
        if self._client is None or time.monotonic() - self._seen_at < self._view_life_s:
            return False
        with self._lock:
            is_first = bool(self._waiting) and self._waiting[0] is waiter
        return is_first and self._looking.acquire(blocking=False)

    def _look(self) -> None:
        if isinstance(self._client, AsyncSwarmClient):
            raise BadRequest("a throttler over an AsyncSwarmClient is entered with `async with`")
        assert self._client is not None, "a view is old only where there is a client"
        before = self._running
        try:
            status = self._client.status()
        except SwarmError:
            status = None
        self._take_view(status, before)

    async def _look_async(self) -> None:
        if not isinstance(self._client, AsyncSwarmClient):
            return await asyncio.to_thread(self._look)
        before = self._running
        try:
            status = await self._client.status()
        except SwarmError:
            status = None
        return self._take_view(status, before)

    def _take_view(self, status: Status | None, running_before: int) -> None:
        """Room from a fresh view. Episodes let in meanwhile are counted as running whether the server knows them or
        not; without a view (the server is away) begin_episode is the one that waits."""
        room = math.inf
        if status is not None and self._client is not None:
            own_id = self._client.client_id
            known = sum(client.running for client in status.clients if client.client_id == own_id)
            room = room_in_batch(status, self._data_source, self._ahead, max(0, running_before - known))
        with self._lock:
            self._room = room - max(0, self._running - running_before)
            self._seen_at = time.monotonic()


def room_in_batch(status: Status, data_source: str | None, ahead: float | None, pending: int) -> float:
    """How many more episodes `ahead` batches can use, 1 + `max_staleness` if that is None; infinite where the server
    itself holds or refuses them.

    What is lacking is the target less the finished episodes, but at least one episode per incomplete task, since
    finished ones may be spread over more tasks than the batch takes. While weights change, the next batch is empty.
    `pending` episodes were let in here and are not begun yet.
    """
    pool, policy = status.pool, status.policy
    is_over = status.total_steps is not None and status.step >= status.total_steps
    if pool is None or policy is None or is_over or policy.stop_rule in _AGREEING:
        return math.inf
    if status.state in {EngineState.OFFLINE, EngineState.FAILED}:
        return math.inf
    source = None if data_source is None else pool.sources.get(data_source)
    tasks, episodes, running, target = pool.tasks, pool.episodes, pool.running_train, pool.tasks_target
    if source is not None and source.tasks_target is not None:
        tasks, episodes, running, target = source.tasks, source.episodes, source.running, source.tasks_target
    if status.state is not EngineState.ROLLING and not policy.max_staleness:
        tasks, episodes, running = 0, 0, 0
    batches = 1 + policy.max_staleness if ahead is None else ahead
    lacking = math.ceil(batches * target * policy.num_repeat) - episodes
    if policy.stop_rule != "enough_episodes":
        lacking = max(lacking, target - tasks)
    return lacking - running - pending
