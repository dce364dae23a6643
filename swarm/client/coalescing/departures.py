"""The schedule of shared requests: which calls share one, when it is sent, and which line of its answer is whose.

Place in the flow: sync_calls.py and async_calls.py do its I/O. The calls come from plans/exchange.py. A call is sent at
once and alone if no other request to its route is under way. Calls that come meanwhile are collected. They are sent
together when the answer to the earlier request begins, or after `SLOW_S`, so that a call that waits on the server
delays no other. This module knows nothing of threads or event loops.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import httpx
from pydantic import ValidationError

from swarm.client.plans.exchange import Joinable, Outcome, joint_request
from swarm.schemas import MAX_TOGETHER, AnswerOfMany

SLOW_S = 0.05
"""The longest time that collected calls wait for the answer to the request before."""

MAX_BYTES = 1 << 20
"""The most bytes of a shared request, far below the limit of a server. A larger entry is sent alone."""

_REFUSED_AS_A_WHOLE = frozenset({400, 413})
"""Statuses that may be due to a single entry. Each call is then sent alone, to find out which one it is."""


class Alone:
    """A marker in the place of an outcome: the call has to be sent alone."""


@dataclass(slots=True, eq=False)
class Caller:
    """One call until its outcome is known. `is_gone` is True once nobody waits for it any more."""

    step: Joinable
    wake: Callable[[], None]
    outcome: Outcome | Alone = None
    is_on_its_way: bool = False
    is_gone: bool = False

    def settle(self, outcome: Outcome | Alone) -> None:
        self.outcome = outcome
        self.wake()


@dataclass(slots=True, eq=False)
class Trip:
    """The callers that share one request, by the index of their entry, without those that have their outcome."""

    callers: dict[int, Caller]
    _rest: bytes = b""

    @property
    def is_over(self) -> bool:
        return not self.callers

    @property
    def is_shared(self) -> bool:
        return len(self.callers) > 1

    def request(self) -> httpx.Request:
        return joint_request([caller.step for caller in self.callers.values()])

    def take(self, piece: bytes) -> list[tuple[Caller, AnswerOfMany]]:
        """Give callers the outcomes that this piece of the answer completes; return those of callers that are gone."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        unclaimed: list[tuple[Caller, AnswerOfMany]] = []
        for line in lines:
            try:
                answer = AnswerOfMany.model_validate_json(line)
            except ValidationError:
                # It is not known whose line this is. Each call that is sent alone gets an error of its own.
                self.settle_rest(Alone())
                return unclaimed
            caller = self.callers.pop(answer.index, None)
            if caller is not None:
                caller.settle(answer)
                if caller.is_gone:
                    unclaimed.append((caller, answer))
        return unclaimed

    def settle_rest(self, outcome: Outcome | Alone) -> None:
        callers, self.callers = self.callers, {}
        for caller in callers.values():
            caller.settle(outcome)


@dataclass(slots=True, eq=False)
class Departures:
    """The calls of one route, for one thread at a time."""

    clear_at: float = 0.0
    """The time, on the monotonic clock, from which the next request may be sent even without an answer."""

    waiting: deque[Caller] = field(default_factory=deque[Caller])
    _newest: object = None

    def may_leave(self, now: float) -> bool:
        return now >= self.clear_at

    def leave(self, trip: object, now: float) -> None:
        """Record that a request is sent. `trip` is any object that identifies it."""
        self._newest, self.clear_at = trip, now + SLOW_S

    def take(self, now: float, caller: Caller | None = None) -> Trip:
        """Take the callers of the next request out of the queue, in their order, and `caller` in any case."""
        taken = list(self._next())
        if caller is not None and caller not in taken:
            self.waiting.remove(caller)
            taken.append(caller)
        for each in taken:
            each.is_on_its_way = True
        trip = Trip(dict(enumerate(taken)))
        self.leave(trip, now)
        return trip

    def heard_of(self, trip: object) -> None:
        """Record that the answer to a request has begun or failed, so that the next request may be sent.

        If a later request is under way, nothing changes.
        """
        if trip is self._newest:
            self._newest, self.clear_at = None, 0.0

    def turn_back(self, trip: Trip) -> None:
        """Put the callers of an interrupted request back at the head of the queue.

        They send the same content again, so a server that already has it answers the same.
        """
        for caller in reversed(trip.callers.values()):
            caller.is_on_its_way = False
            if not caller.is_gone:
                self.waiting.appendleft(caller)
                caller.wake()
        trip.callers = {}

    def withdraw(self, caller: Caller) -> None:
        """Remove a caller that no longer waits for its outcome."""
        caller.is_gone = True
        if caller in self.waiting:
            self.waiting.remove(caller)

    def refuse(self, trip: Trip, response: httpx.Response) -> None:
        """Settle all callers of a request that was refused as a whole. The body of `response` must have been read."""
        each_alone = response.status_code in _REFUSED_AS_A_WHOLE or response.is_success
        trip.settle_rest(Alone() if each_alone else response)

    def _next(self) -> Iterator[Caller]:
        count = size = 0
        while self.waiting and count < MAX_TOGETHER - 1:
            size += len(self.waiting[0].step.entry)
            if count and size > MAX_BYTES:
                return
            count += 1
            yield self.waiting.popleft()


def cut_off() -> httpx.TransportError:
    """Return the error for callers whose answer ended before their line came."""
    return httpx.RemoteProtocolError("the answer to a shared request ended before it had a line for each call")
