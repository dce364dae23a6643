"""Sleep until the earliest of several dues, which may move nearer meanwhile.

Place in the flow: one per rollout. Times are seconds of the monotonic clock.
"""

from __future__ import annotations

import asyncio
import time

STALL_S = 2.0
STALL_GRACE_S = 1.0
"""A sleep that took STALL_S longer than planned means that this process stood still: signs of life are waiting to be
read, and get this long before anything is held against anyone."""


class Alarm:
    """Used from one event loop, by one sleeper."""

    def __init__(self) -> None:
        self._rings_at = 0.0
        self._moved = asyncio.Event()

    def ring_by(self, due: float) -> None:
        """Wake the sleeper no later than `due`."""
        if due < self._rings_at:
            self._rings_at = due
            self._moved.set()

    async def sleep_until(self, due: float) -> None:
        """Returns at `due`, or as soon as `ring_by` has named an earlier time: the caller then plans anew."""
        self._rings_at = due
        self._moved.clear()
        try:
            async with asyncio.timeout(max(0.0, due - time.monotonic())):
                await self._moved.wait()
        except TimeoutError:
            pass
        if time.monotonic() > self._rings_at + STALL_S:
            await asyncio.sleep(STALL_GRACE_S)
