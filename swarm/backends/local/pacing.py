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
"""Longest delay of a token before it is sent. A reader sees no difference."""
FIRST_TOKEN_DELAY_S = 0.01
"""Longest delay of a completion's first token among many: by then many completions of a small model are over."""
COMPANY = 12
"""Among fewer completions a first token is sent at once, because CPU time is not scarce."""


@dataclass(slots=True)
class _Unsent:
    """Tokens of one completion that have not been sent; `has_begun` tells that earlier ones have.

    The first of them counts as if it had arrived at `since`.
    """

    token_ids: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    likeliest: list[TokenLogprobs] = field(default_factory=list[TokenLogprobs])
    has_begun: bool = False
    since: float = 0.0


class TokenDelivery:
    """Unsent tokens of all running completions, of one weight version: call `flush` before weights change."""

    def __init__(self, send: Callable[[Message], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._send = send
        self._clock = clock
        self._unsent: dict[int, _Unsent] = {}
        self._version = 0
        self._flushed_at = clock()

    def add(self, results: Sequence[Sampled], weight_version: int, step_s: float = FIRST_TOKEN_DELAY_S) -> None:
        """Take the results of one step, and send the tokens that are due: beginnings, ends, and old tokens.

        The step took `step_s`, and the next one will probably take as long. A beginning waits for it only if that is
        short.
        """
        self._version = weight_version
        now = self._clock()
        since = now if len(results) >= COMPANY else -math.inf
        due = [entry for each in results for entry in self._take(each, since, now + step_s)]
        if now - self._flushed_at >= LONGEST_DELAY_S:
            due += self._release_all()
        self._post(due)
        for each in results:
            if each.error is not None:
                self._send({"id": each.handle, "error": pack_error(each.error)})

    def _take(self, each: Sampled, since: float, next_at: float) -> list[list[Any]]:
        """Keep one result, and return the tokens of its completion that are due before the next step ends.

        `since` is the start time for a completion that begins with this result.
        """
        if (unsent := self._unsent.get(each.handle)) is None:
            unsent = self._unsent[each.handle] = _Unsent(since=since)
        if each.token_id is not None:
            unsent.token_ids.append(each.token_id)
            unsent.logprobs.append(each.logprob)
            if each.likeliest is not None:
                unsent.likeliest.append(each.likeliest)
        if each.finish_reason is not None:
            del self._unsent[each.handle]
            return [_entry(each.handle, unsent, each.finish_reason)]
        if each.error is not None:
            del self._unsent[each.handle]
            return [_entry(each.handle, unsent, None)] if unsent.token_ids else []
        if not unsent.has_begun and next_at - unsent.since >= FIRST_TOKEN_DELAY_S:
            return [self._release(each.handle, unsent)]
        return []

    def flush(self) -> None:
        """Send all unsent tokens."""
        self._post(self._release_all())

    def forget(self, handle: int) -> None:
        """Drop the unsent tokens of a completion that has no reader any more."""
        self._unsent.pop(handle, None)

    def abort(self, handles: Sequence[int]) -> None:
        """Send all unsent tokens, and end these completions with finish reason `abort`."""
        self.flush()
        self._unsent.clear()
        self._post([_entry(handle, _Unsent(), FinishReason.ABORT) for handle in handles])

    def fail(self, handles: Sequence[int], error: list[str | None]) -> None:
        """Send all unsent tokens, and end these completions with an error."""
        self.flush()
        self._unsent.clear()
        for handle in handles:
            self._send({"id": handle, "error": error})

    def _release_all(self) -> list[list[Any]]:
        self._flushed_at = self._clock()
        return [self._release(handle, unsent) for handle, unsent in self._unsent.items() if unsent.token_ids]

    def _release(self, handle: int, unsent: _Unsent) -> list[Any]:
        self._unsent[handle] = _Unsent(has_begun=True)
        return _entry(handle, unsent, None)

    def _post(self, entries: Sequence[list[Any]]) -> None:
        if entries:
            self._send({"tokens": entries, "version": self._version})


def _entry(handle: int, unsent: _Unsent, finish_reason: FinishReason | None) -> list[Any]:
    entry = [handle, unsent.token_ids, unsent.logprobs, finish_reason]
    return [*entry, unsent.likeliest] if unsent.likeliest else entry
