"""When requests begin and when their tokens are sent: in common passes and larger messages, which cost little more."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from swarm.backends.process.wire import Message, pack_error
from swarm.types import FinishReason, TokenLogprobs

if TYPE_CHECKING:
    from swarm.backends.local.decoding.batching import Sampled

MOST_AWAITED = 32
"""With this many rows, a fuller pass costs hardly less per row, even for a model as small as the bundled one."""
LONGEST_WAIT_S = 0.05
"""No request waits longer than this for others. A reader sees no difference."""
SHORTEST_SILENCE_S = 0.01
"""No request waits once this time has passed since the latest arrival: the missing clients are busy elsewhere. On a
busy machine requests arrive more slowly, and only a silence of `GAPS_OF_SILENCE` usual gaps counts."""
GAPS_OF_SILENCE = 4.0
NEWEST_GAP = 0.1
"""Weight of the newest gap in the average gap."""
WINDOW_S = 1.0
"""The number of requests present at once is remembered for one to two times this long."""


class Gathering:
    """Counter of the requests that have arrived since the last ones began."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pending = 0
        self._first_at = self._latest_at = 0.0
        self._gap_s = 0.0
        self._window_until = 0.0
        self._most, self._most_before = 0, 0

    def arrived(self, present: int) -> None:
        """Record that a request has arrived; `present` counts all waiting and running requests, with this one."""
        now = self._clock()
        if now >= self._window_until:
            is_recent = now < self._window_until + WINDOW_S
            self._most, self._most_before = 0, self._most if is_recent else 0
            self._window_until = now + WINDOW_S
        self._most = max(self._most, present)
        if not self._pending:
            self._first_at = now
        else:
            self._gap_s += NEWEST_GAP * (now - self._latest_at - self._gap_s)
        self._pending += 1
        self._latest_at = now

    def begun(self) -> None:
        """Record that the arrived requests have begun."""
        self._pending = 0

    def wait_s(self, waiting: int) -> float:
        """Return how much longer the `waiting` requests may wait for another one, in seconds; 0 means begin now."""
        # If requests are left over from the last start, the batch is full, so there is no reason to wait.
        if not self._pending or waiting > self._pending or self._pending >= self._awaited:
            return 0.0
        silence_s = max(SHORTEST_SILENCE_S, GAPS_OF_SILENCE * self._gap_s)
        return max(0.0, min(self._first_at + LONGEST_WAIT_S, self._latest_at + silence_s) - self._clock())

    @property
    def _awaited(self) -> int:
        return min(MOST_AWAITED, max(self._most, self._most_before) // 2)


LONGEST_DELAY_S = 0.05
"""Longest delay of a token before it is sent. A reader sees no difference. After a pause, tokens are sent at once."""


@dataclass(slots=True)
class _Unsent:
    """Tokens of one completion that have not been sent."""

    token_ids: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    likeliest: list[TokenLogprobs] = field(default_factory=list[TokenLogprobs])

    def entry(self, handle: int, finish_reason: FinishReason | None) -> list[Any]:
        entry = [handle, self.token_ids, self.logprobs, finish_reason]
        return [*entry, self.likeliest] if self.likeliest else entry


class TokenDelivery:
    """Unsent tokens of all running completions, of one weight version: call `flush` before weights change."""

    def __init__(self, send: Callable[[Message], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._send = send
        self._clock = clock
        self._unsent: dict[int, _Unsent] = {}
        self._version = 0
        self._flushed_at = -math.inf

    def add(self, results: Sequence[Sampled], weight_version: int) -> None:
        """Take the results of one step. Send ended completions at once, and the others together from time to time."""
        self._version = weight_version
        due: list[list[Any]] = []
        for each in results:
            unsent = self._unsent.setdefault(each.handle, _Unsent())
            if each.token_id is not None:
                unsent.token_ids.append(each.token_id)
                unsent.logprobs.append(each.logprob)
                if each.likeliest is not None:
                    unsent.likeliest.append(each.likeliest)
            if each.finish_reason is not None or each.error is not None:
                del self._unsent[each.handle]
                if unsent.token_ids or each.error is None:
                    due.append(unsent.entry(each.handle, each.finish_reason))
        if self._clock() - self._flushed_at >= LONGEST_DELAY_S:
            due += self._release()
        self._post(due)
        for each in results:
            if each.error is not None:
                self._send({"id": each.handle, "error": pack_error(each.error)})

    def flush(self) -> None:
        """Send all unsent tokens."""
        self._post(self._release())

    def forget(self, handle: int) -> None:
        """Drop the unsent tokens of a completion that has no reader any more."""
        self._unsent.pop(handle, None)

    def abort(self, handles: Sequence[int]) -> None:
        """Send all unsent tokens, and end these completions with finish reason `abort`."""
        self.flush()
        self._post([_Unsent().entry(handle, FinishReason.ABORT) for handle in handles])

    def fail(self, handles: Sequence[int], error: list[str | None]) -> None:
        """Send all unsent tokens, and end these completions with an error."""
        self.flush()
        for handle in handles:
            self._send({"id": handle, "error": error})

    def _release(self) -> list[list[Any]]:
        self._flushed_at = self._clock()
        entries = [unsent.entry(handle, None) for handle, unsent in self._unsent.items()]
        self._unsent.clear()
        return entries

    def _post(self, entries: Sequence[list[Any]]) -> None:
        if entries:
            self._send({"tokens": entries, "version": self._version})
