"""The episodes that one client holds, and what the server said of those it lost.

Place in the flow: the plans of calls.py write it, the heartbeats read it. Safe to use from threads. Knows nothing of
HTTP.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

DEFAULT_LEASE_S = 30.0
# A lease outlasts two heartbeats that went astray.
BEATS_PER_LEASE = 3
# Episodes whose client asks late are told from memory; beyond this the server is asked.
MAX_REMEMBERED = 10_000


@dataclass(slots=True)
class _Held:
    """`lease_s` None: the server expects no sign of life. `is_ending` once its result was sent."""

    lease_s: float | None
    is_ending: bool = False


class Leases:
    """Begun and not yet over, as far as this client knows."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[str, _Held] = {}
        self._lost: OrderedDict[str, str] = OrderedDict()

    def hold(self, episode_id: str, lease_s: float | None) -> None:
        with self._lock:
            self._held[episode_id] = _Held(lease_s)

    def holds(self, episode_id: str) -> bool:
        return episode_id in self._held

    def lost(self, episode_id: str) -> str | None:
        """Why the server gave this episode up, as far as it was said."""
        return self._lost.get(episode_id)

    def end(self, episode_id: str) -> None:
        """A result is on its way: from now on, `ended` may be the echo of our own call."""
        with self._lock:
            if held := self._held.get(episode_id):
                held.is_ending = True

    def release(self, episode_id: str) -> None:
        with self._lock:
            self._held.pop(episode_id, None)

    def lose(self, ended: Mapping[str, str]) -> list[str]:
        """Note what a heartbeat was answered; returns the episodes that were lost by it."""
        lost: list[str] = []
        with self._lock:
            for episode_id, reason in ended.items():
                held = self._held.get(episode_id)
                if held is not None and not held.is_ending:
                    del self._held[episode_id]
                    self._lost[episode_id] = reason
                    lost.append(episode_id)
            while len(self._lost) > MAX_REMEMBERED:
                self._lost.popitem(last=False)
        return lost

    def beating(self) -> tuple[float, list[str]] | None:
        """Seconds between heartbeats and the episodes that need them; None if none does."""
        with self._lock:
            leases = {episode_id: held.lease_s for episode_id, held in self._held.items() if held.lease_s is not None}
        if not leases:
            return None
        return min(leases.values()) / BEATS_PER_LEASE, list(leases)
