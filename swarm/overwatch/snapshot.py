"""Snapshot: what a server said last, and since when it says nothing.

Place in the flow: `Watcher` asks the control API by GET alone; panels.py draws what it returns. Knows nothing of
terminals. A server that is restarted, replaced or out of reach is a state to show, never an exception.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, TypeVar

from swarm.client import AsyncSwarmClient
from swarm.errors import Forbidden, NotFound, ServerUnreachable, SwarmError
from swarm.schemas import EventView, MetricPointView, Status

T = TypeVar("T")

REWARD_METRIC = "critic/score/mean"
# What a curve of a terminal's width can still show.
HISTORY_STEPS = 2000
KEPT_EVENTS = 50
STEPS_COUNT_ANEW = frozenset({"job.started", "weights.rewound"})
# Bounds one look at a server that does not answer; the next look comes anyway.
LOOK_TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """`status` is the newest answer, None before the first. `rewards` are (step, mean reward), `events` oldest first.

    `error` is None if this look succeeded; `failing_since` is when the first look of the present row of failures
    began. Times are seconds since the epoch, on this machine's clock.
    """

    url: str
    at: float
    status: Status | None = None
    rewards: tuple[tuple[int, float], ...] = ()
    events: tuple[EventView, ...] = ()
    error: SwarmError | None = None
    failing_since: float | None = None

    @property
    def is_unreachable(self) -> bool:
        return isinstance(self.error, ServerUnreachable)

    def as_json(self) -> dict[str, Any]:
        """The machine-readable form, as `swarm overwatch --once --json` prints it."""
        return {
            "url": self.url,
            "at": self.at,
            "status": None if self.status is None else self.status.model_dump(mode="json"),
            "rewards": [{"step": step, "reward": reward} for step, reward in self.rewards],
            "events": [event.model_dump(mode="json") for event in self.events],
        }


class Watcher:
    """Looks at one server again and again. Used from one event loop; close it in the end."""

    def __init__(self, url: str, token: str | None) -> None:
        """Raises BadRequest for a malformed url."""
        self._client = AsyncSwarmClient(url, token, client_id="overwatch", timeout=LOOK_TIMEOUT_S)
        self._rewards: dict[int, float] = {}
        self._events: deque[EventView] = deque(maxlen=KEPT_EVENTS)
        self._latest = Snapshot(url=self._client.url, at=time.time())

    @property
    def url(self) -> str:
        return self._latest.url

    async def look(self) -> Snapshot:
        """Ask once. Never raises a SwarmError: the snapshot carries it, with what was known before."""
        before = self._latest
        began = time.time()
        try:
            status = await self._client.status()
            if before.status is not None and before.status.started_at != status.started_at:
                # Another process answers here, maybe with another ledger, whose ids and steps are its own.
                self._rewards.clear()
                self._events.clear()
            await self._read_events()
            await self._read_rewards(status.step)
        except SwarmError as error:
            since = before.failing_since if before.failing_since is not None else began
            self._latest = Snapshot(
                before.url, time.time(), before.status, before.rewards, before.events, error, failing_since=since
            )
        else:
            rewards = tuple(sorted(self._rewards.items()))
            self._latest = Snapshot(before.url, time.time(), status, rewards, tuple(self._events))
        return self._latest

    async def close(self) -> None:
        await self._client.close()

    async def _read_events(self) -> None:
        last = self._events[-1].event_id if self._events else 0
        news = await _if_allowed(self._client.past_events(last))
        self._events.extend(news)
        if any(event.kind in STEPS_COUNT_ANEW for event in news):
            self._rewards.clear()

    async def _read_rewards(self, step: int) -> None:
        known = max(self._rewards, default=0)
        if step > known:
            points = await _if_allowed(self._client.metrics(max(known, step - HISTORY_STEPS)))
            self._rewards |= _rewards_of(points)
        for outdated in sorted(self._rewards)[:-HISTORY_STEPS]:
            del self._rewards[outdated]


def _rewards_of(points: list[MetricPointView]) -> dict[int, float]:
    return {point.step: point.metrics[REWARD_METRIC] for point in points if REWARD_METRIC in point.metrics}


async def _if_allowed(call: Awaitable[list[T]]) -> list[T]:
    """What a role may not read, or a server does not offer, is left out of the picture."""
    try:
        return await call
    except (Forbidden, NotFound):
        return []
