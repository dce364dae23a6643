"""Which calls leave together, and when; and whose line of an answer is whose. Without I/O, threads or event loops.

Place in the flow: sync_calls.py and async_calls.py carry out what stands here; the calls are those of
plans/exchange.py. A call that comes while none of its route is on its way leaves at once and alone. Those that come
meanwhile are collected and leave together as soon as that one's answer begins, or after `SLOW_S`, so that a call that
is held holds no other.
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
"""What is collected waits no longer than this for the answer to the request before."""

MAX_BYTES = 1 << 20
"""A request has at most so many bytes, far below what a server takes. A larger entry leaves alone."""

_REFUSED_AS_A_WHOLE = frozenset({400, 413})
"""Something about one of the entries: each learns by itself whether it was it."""


class Alone:
    """In place of an outcome: the call has to be sent by itself."""


@dataclass(slots=True, eq=False)
class Caller:
    """One call, from when it is made until its outcome is known. `is_gone` once nobody waits for it any more."""

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
    """Callers that share one request, by the index of their entry. Those that are settled are left out."""

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
        """Settle those whose lines have arrived. Returns the answers to callers that are gone."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        unclaimed: list[tuple[Caller, AnswerOfMany]] = []
        for line in lines:
            try:
                answer = AnswerOfMany.model_validate_json(line)
            except ValidationError:
                # The calls it may be about learn what this server is when each is sent by itself.
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
    """The calls of one route. Used by one thread at a time."""

    clear_at: float = 0.0
    """When the next request may leave, on the monotonic clock, if nothing is heard of the newest before."""

    waiting: deque[Caller] = field(default_factory=deque[Caller])
    _newest: object = None

    def may_leave(self, now: float) -> bool:
        return now >= self.clear_at

    def leave(self, trip: object, now: float) -> None:
        """A request leaves; `trip` is any object that stands for it."""
        self._newest, self.clear_at = trip, now + SLOW_S

    def take(self, now: float, caller: Caller | None = None) -> Trip:
        """Those who leave now, in the order in which they came; `caller`, who is one who waits, among them."""
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
        """The answer to a request begins, or it came to nothing: the way is clear, unless a later one is on it."""
        if trip is self._newest:
            self._newest, self.clear_at = None, 0.0

    def turn_back(self, trip: Trip) -> None:
        """Whoever carried out a request was interrupted: those that it took along go first in the next one. What they
        send is the same, so that a server that had heard of them answers the same."""
        for caller in reversed(trip.callers.values()):
            caller.is_on_its_way = False
            if not caller.is_gone:
                self.waiting.appendleft(caller)
                caller.wake()
        trip.callers = {}

    def withdraw(self, caller: Caller) -> None:
        """Nobody waits for the outcome any more."""
        caller.is_gone = True
        if caller in self.waiting:
            self.waiting.remove(caller)

    def refuse(self, trip: Trip, response: httpx.Response) -> None:
        """The answer to the request as a whole, its body read."""
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
    """What the callers of a trip are told whose answer ended early."""
    return httpx.RemoteProtocolError("the answer ended before all of its entries were told")
