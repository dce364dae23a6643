"""The pace of attempts: how many are made at once, by the tokens per second that the server samples."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass

from swarm.client.client import SwarmClient
from swarm.errors import SwarmError
from swarm.types import EpisodeType

logger = logging.getLogger(__name__)

TARGET_S = 120.0
"""The seconds of sampling that one attempt may take. Agents, tools and servers have time limits of some minutes."""
SLOW_S = 30.0
"""From here on a server is called slow."""
FIRST = 8
"""The attempts that are made at once before anything is known."""
LOOK_S = 10.0
"""The interval of looks at the server, whose tokens per second are those of the last 10 s."""


@dataclass(frozen=True, slots=True)
class SamplingSpeed:
    """The tokens per second of a server in all, the completions under way, and the tokens of an attempt."""

    tokens_per_s: float
    in_flight: int
    attempt_tokens: float

    @property
    def attempt_s(self) -> float:
        """The seconds of sampling of one attempt, with as many completions at once as now."""
        return self.attempt_tokens * self.in_flight / self.tokens_per_s

    def attempts_at_once(self, running: int, most: int) -> int:
        """Return how many attempts may run, at most `most`, so that the sampling of each takes TARGET_S at most.

        `running` attempts run now. Fewer share the same tokens per second.
        """
        return max(1, min(most, int(running * TARGET_S / self.attempt_s)))


class AttemptPace:
    """A limit on the attempts that are made at once: use `with pace:` around each of them, from any thread.

    A few are made at first, and one more with each that ends. Once the speed of the server is known, it decides. A
    server that is slow is named in the log, once.
    """

    def __init__(
        self,
        client: SwarmClient,
        episode_type: EpisodeType,
        most: int,
        *,
        total: int | None = None,
        look_s: float = LOOK_S,
    ) -> None:
        """Allow up to `most` attempts at once. `total` attempts are made in all, if that is known."""
        self._client = client
        self._type = episode_type
        self._most = most
        self._total = total
        self._look_s = look_s
        self._changed = threading.Condition()
        self._running = 0
        self._limit = min(most, FIRST)
        self._due = time.monotonic() + look_s
        self._is_measured = self._is_told = False
        self._before: SamplingSpeed | None = None

    @property
    def limit(self) -> int:
        """The number of attempts that may run at once now."""
        return self._limit

    def __enter__(self) -> None:
        while True:
            self._look_if_due()
            with self._changed:
                if self._running < self._limit:
                    self._running += 1
                    return
                self._changed.wait(self._look_s)

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._running -= 1
            if not self._is_measured:
                self._limit = min(self._most, self._limit + 1)
            self._changed.notify(2)

    def _look_if_due(self) -> None:
        with self._changed:
            if time.monotonic() < self._due:
                return
            self._due = time.monotonic() + self._look_s
            running = self._running
        seen, before = self._measure(), self._before
        self._before = seen
        # While weights change nothing is sampled, and the first tokens after a pause are few. Neither is the speed, so
        # the better one of two looks in a row counts.
        if seen is None or before is None or not running:
            return
        speed = min(seen, before, key=lambda each: each.attempt_s)
        with self._changed:
            self._limit, self._is_measured = speed.attempts_at_once(running, self._most), True
            is_news = speed.attempt_s > SLOW_S and not self._is_told
            self._is_told = self._is_told or is_news
            self._changed.notify_all()
        if is_news:
            logger.warning("%s", self._line(speed, running))

    def _measure(self) -> SamplingSpeed | None:
        try:
            status, usage = self._client.status(), self._client.usage(self._type)
        except SwarmError:
            return None
        if not (status.tokens_per_second and status.calls_in_flight and usage.sampled_tokens):
            return None
        return SamplingSpeed(
            status.tokens_per_second, status.calls_in_flight, usage.sampled_tokens / max(1, usage.episodes)
        )

    def _line(self, speed: SamplingSpeed, running: int) -> str:
        line = (
            f"the server is slow: it samples {speed.tokens_per_s:.1f} tokens per second in all, so an attempt of "
            f"{speed.attempt_tokens:.0f} tokens takes about {_minutes(speed.attempt_s)} minutes with {running} at "
            f"once. From here on {self._limit} are made at once"
        )
        if self._total is None:
            return line
        all_s = self._total * speed.attempt_tokens / speed.tokens_per_s
        return f"{line}; all {self._total} take about {_minutes(all_s)} minutes"


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f}" if seconds < 600 else f"{seconds / 60:.0f}"
