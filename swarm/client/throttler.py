"""The throttler: it limits how many episodes of a client run, how fast they begin, and how many a batch still needs."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from swarm.client.client import AsyncSwarmClient, SwarmClient
from swarm.errors import BadRequest, SwarmError
from swarm.schemas import STOP_RULES, EngineState, Status

# The longest age of the status by which an episode is admitted, and of the one by which all have to wait.
VIEW_LIFE_S = 0.5
FULL_VIEW_LIFE_S = 0.1
# The longest wait of an episode that is not the first in the queue; it is also woken when it becomes the first.
LOOK_S = 5.0


@dataclass(slots=True, eq=False)
class _Waiter:
    """One episode in the queue. `wake` is called, from any thread, when it is admitted or becomes the first."""

    wake: Callable[[], object]
    is_admitted: bool = False


class Throttler:
    """A limit on episodes: use `with throttler: ...` around each one from threads, `async with` from tasks.

    Episodes are admitted in the order in which they come, while fewer than `max_running` run. At most `per_second`
    begin per second, without bursts. With a `client`, they are admitted only while the current batch lacks episodes of
    `data_source` (None: of any). That costs two status calls a second, and ten while the batch lacks none.

    The server alone decides which episodes a batch takes; the throttler keeps a client from beginning more than the
    batch can use. It computes that number from the server's status: the episodes that the batch lacks, less those that
    run. So all clients of a data source share it.
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
        """Create a throttler. `max_running` and `per_second` set no limit if they are None.

        `ahead` is the number of batches to begin episodes for. None stands for the current batch and as many after it
        as `max_staleness` allows. A fraction more makes up for episodes that fail. Raises BadRequest for a limit that
        is not above 0.
        """
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
        self._capacity = math.inf if client is None else 0.0
        self._seen_at = -math.inf

    @property
    def running(self) -> int:
        """The number of admitted episodes that are not over."""
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
        """Admit episodes as the limits allow; return the seconds after which `waiter` looks again."""
        with self._lock:
            now = time.monotonic()
            while (
                self._waiting and self._running < self._max_running and self._capacity >= 1 and now >= self._next_begin
            ):
                first = self._waiting.popleft()
                first.is_admitted = True
                self._running += 1
                self._capacity -= 1
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
        return VIEW_LIFE_S if self._capacity >= 1 else FULL_VIEW_LIFE_S

    def _may_look(self, waiter: _Waiter) -> bool:
        """Return whether this waiter is to ask for the status. If so, it has acquired the lock `_looking`."""
        if self._client is None or time.monotonic() - self._seen_at < self._view_life_s:
            return False
        with self._lock:
            is_first = bool(self._waiting) and self._waiting[0] is waiter
        return is_first and self._looking.acquire(blocking=False)

    def _look(self) -> None:
        if isinstance(self._client, AsyncSwarmClient):
            raise BadRequest("a throttler with an AsyncSwarmClient works in tasks only: use `async with`")
        assert self._client is not None, "a status can be too old only if there is a client"
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
        """Count how many more episodes may begin, from a fresh status.

        Episodes that were admitted since the status was asked for count as running. Without a status (the server does
        not answer) all are admitted, because begin_episode waits for the server.
        """
        capacity = math.inf
        if status is not None and self._client is not None:
            own_id = self._client.client_id
            known = sum(client.running for client in status.clients if client.client_id == own_id)
            capacity = capacity_in_batch(status, self._data_source, self._ahead, max(0, running_before - known))
        with self._lock:
            self._capacity = capacity - max(0, self._running - running_before)
            self._seen_at = time.monotonic()


def capacity_in_batch(status: Status, data_source: str | None, ahead: float | None, pending: int) -> float:
    """Return how many more episodes `ahead` batches can use; None stands for 1 + `max_staleness` batches.

    The number is the target, less the finished, the running and the `pending` episodes. `pending` ones were admitted
    here but have not begun. For each incomplete task at least one episode is lacking, since the finished ones may be
    spread over more tasks than the batch takes. While weights change, the next batch is empty. The number is infinite
    where the server itself delays or refuses episodes.
    """
    pool, policy = status.pool, status.policy
    is_over = status.total_steps is not None and status.step >= status.total_steps
    if pool is None or policy is None or is_over or STOP_RULES[policy.stop_rule].agreeing:
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
    if STOP_RULES[policy.stop_rule].unit != "episodes":
        lacking = max(lacking, target - tasks)
    return lacking - running - pending
