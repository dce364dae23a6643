"""The snapshot of a server: its last answers, and the time since which it does not answer."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeVar

from swarm.client import AsyncSwarmClient
from swarm.errors import Forbidden, NotFound, ServerUnreachable, SwarmError
from swarm.schemas import EngineState, EventView, MetricPointView, Status

T = TypeVar("T")

REWARD_METRIC = "critic/score/mean"
# A curve as wide as a terminal can show no more.
HISTORY_STEPS = 2000
KEPT_EVENTS = 50
PACE_STEPS = 20
"""The last steps that the time of a step is estimated from."""
OVERDUE_TIMES = 2.0
"""How many times the usual time a step takes before it is said to take longer than expected."""
OVERDUE_SHARE = 0.25
"""The share of its time so far that a step may still take once it has taken longer than usual."""
TRAINING_STATES = frozenset({EngineState.ROLLING, EngineState.DRAINING, EngineState.TRAINING, EngineState.EXPORTING})
STEPS_COUNT_ANEW = frozenset({"job.started", "weights.rewound"})
# So short because the next look follows soon.
LOOK_TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True)
class ServerSnapshot:
    """The state of a server after one look at it.

    `status` is the newest answer, or None before the first one. `rewards` are pairs of step and mean reward. `step_s`
    is the median time between the last steps in seconds, or None before the second one. `step_ended_at` is the end of
    the last step by the server's clock. `events` come oldest first. `error` is None if this look succeeded. If it
    failed, `failing_since` is the begin of the first of the failed looks in a row. Other times are seconds since the
    epoch, on this machine's clock.
    """

    url: str
    at: float
    status: Status | None = None
    rewards: tuple[tuple[int, float], ...] = ()
    events: tuple[EventView, ...] = ()
    error: SwarmError | None = None
    failing_since: float | None = None
    step_s: float | None = None
    step_ended_at: float | None = None

    @property
    def step_took_s(self) -> float | None:
        """The seconds since the end of the last step, or None if no step is under way or its begin is unknown."""
        status = self.status
        if (
            status is None
            or self.step_ended_at is None
            or self.error is not None
            or status.state not in TRAINING_STATES
        ):
            return None
        return max(0.0, status.now - self.step_ended_at)

    @property
    def is_overdue(self) -> bool:
        """True if the present step takes much longer than the last ones, so that no time left can be told."""
        took, usual = self.step_took_s, self.step_s
        return took is not None and usual is not None and took > max(OVERDUE_TIMES * usual, usual + LOOK_TIMEOUT_S)

    @property
    def seconds_left(self) -> float | None:
        """The estimated time until the last step of the job in seconds, or None if it cannot be estimated."""
        status, usual = self.status, self.step_s
        if status is None or status.total_steps is None or usual is None or status.step >= status.total_steps:
            return None
        if self.is_overdue or self.error is not None or status.state not in TRAINING_STATES:
            return None
        took = self.step_took_s or 0.0
        return usual * (status.total_steps - status.step - 1) + max(usual - took, OVERDUE_SHARE * took)

    @property
    def is_unreachable(self) -> bool:
        return isinstance(self.error, ServerUnreachable)

    def as_json(self) -> dict[str, Any]:
        """Return the snapshot as JSON data, as `swarm overwatch --once --json` prints it."""
        return {
            "url": self.url,
            "at": self.at,
            "status": None if self.status is None else self.status.model_dump(mode="json"),
            "seconds_per_step": self.step_s,
            "seconds_left": self.seconds_left,
            "is_overdue": self.is_overdue,
            "rewards": [{"step": step, "reward": reward} for step, reward in self.rewards],
            "events": [event.model_dump(mode="json") for event in self.events],
        }


class Watcher:
    """A reader that looks at one server again and again. Use it from one event loop, and close it."""

    def __init__(self, url: str, token: str | None) -> None:
        """Create a watcher; nothing is asked yet. Raise BadRequest for a malformed url."""
        self._client = AsyncSwarmClient(url, token, client_id="overwatch", timeout=LOOK_TIMEOUT_S)
        self._rewards: dict[int, float] = {}
        self._ended_at: dict[int, float] = {}
        self._events: deque[EventView] = deque(maxlen=KEPT_EVENTS)
        self._latest: ServerSnapshot = ServerSnapshot(url=self._client.url, at=time.time())

    @property
    def url(self) -> str:
        return self._latest.url

    async def look(self) -> ServerSnapshot:
        """Ask the server once and return the snapshot. A SwarmError is put into it, beside the last answers."""
        before = self._latest
        began = time.time()
        try:
            status = await self._client.status()
            if before.status is not None and before.status.started_at != status.started_at:
                # This is another process, maybe with another ledger, which has other ids and steps.
                self._forget_steps()
                self._events.clear()
            await self._read_events()
            await self._read_rewards(status.step)
        except SwarmError as error:
            since = before.failing_since if before.failing_since is not None else began
            self._latest = replace(before, at=time.time(), error=error, failing_since=since)
        else:
            rewards = tuple(sorted(self._rewards.items()))
            self._latest = ServerSnapshot(
                before.url,
                time.time(),
                status,
                rewards,
                tuple(self._events),
                step_s=_step_s(self._ended_at),
                step_ended_at=max(self._ended_at.values(), default=None),
            )
        return self._latest

    async def close(self) -> None:
        await self._client.close()

    async def _read_events(self) -> None:
        last = self._events[-1].event_id if self._events else 0
        news = await _if_allowed(self._client.past_events(last))
        self._events.extend(news)
        if any(event.kind in STEPS_COUNT_ANEW for event in news):
            self._forget_steps()

    async def _read_rewards(self, step: int) -> None:
        known = max(self._rewards, default=0)
        if step > known:
            points = await _if_allowed(self._client.metrics(max(known, step - HISTORY_STEPS)))
            self._rewards |= _rewards_of(points)
            self._ended_at |= {point.step: point.at for point in points}
        for outdated in sorted(self._rewards)[:-HISTORY_STEPS]:
            del self._rewards[outdated]
        for outdated in sorted(self._ended_at)[: -PACE_STEPS - 1]:
            del self._ended_at[outdated]

    def _forget_steps(self) -> None:
        self._rewards.clear()
        self._ended_at.clear()


def _step_s(ended_at: Mapping[int, float]) -> float | None:
    """Return the median time of a step from the end of the steps, which may lack some, or None for less than two."""
    took = [(ended_at[later] - ended_at[step]) / (later - step) for step, later in pairwise(sorted(ended_at))]
    return max(0.0, statistics.median(took)) if took else None


def _rewards_of(points: list[MetricPointView]) -> dict[int, float]:
    return {point.step: point.metrics[REWARD_METRIC] for point in points if REWARD_METRIC in point.metrics}


async def _if_allowed(call: Awaitable[list[T]]) -> list[T]:
    """Return the result of a call, or an empty list if the token may not make it or the server does not have it."""
    try:
        return await call
    except (Forbidden, NotFound):
        return []
