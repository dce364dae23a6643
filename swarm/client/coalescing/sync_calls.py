"""Coalescing for threads: one of the calling threads sends the shared request and hands out the answers.

Place in the flow: SwarmClient hands it the calls that may share a request. It needs no thread of its own, because the
first thread that waits becomes the sender. If the sender has its own answer before the others have theirs, a daemon
thread reads the rest. It knows nothing of the content of the calls.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from contextlib import suppress

import httpx

from swarm.client.coalescing.departures import Alone, Caller, Departures, Trip, cut_off
from swarm.client.plans.exchange import Joinable, Outcome
from swarm.schemas import AnswerOfMany

LEAST_WAIT_S = 0.001
SUCCESS = 200

FOREVER = -1.0


class Signal:
    """An event for one waiting thread. threading.Event would double the cost of handing out an answer."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        # The lock is free already if the signal is set.
        with suppress(RuntimeError):
            self._lock.release()

    def wait(self, limit_s: float) -> None:
        """Wait until the signal is set, and clear it. Return after `limit_s` seconds at the latest."""
        self._lock.acquire(timeout=limit_s)


class ThreadCoalescer:
    """The coalescer of a SwarmClient, for any number of threads."""

    def __init__(self, http: httpx.Client, unclaimed: Callable[[Joinable, AnswerOfMany], None]) -> None:
        """Create a coalescer. `unclaimed` gets the answer to a call whose thread was interrupted before it came."""
        self._http = http
        self._unclaimed = unclaimed
        self._lock = threading.Lock()
        self._departures: dict[str, Departures] = {}

    def carry_out(self, step: Joinable) -> Outcome:
        with self._lock:
            departures = self._departures.setdefault(step.path, Departures())
            now = time.monotonic()
            leaves_at_once = departures.may_leave(now) and not departures.waiting
            if leaves_at_once:
                departures.leave(step, now)
            arrived = Signal()
            caller = Caller(step, arrived.set)
            if not leaves_at_once:
                departures.waiting.append(caller)
        if leaves_at_once:
            return self._send_alone(departures, step, step)
        try:
            outcome = self._wait(departures, caller, arrived)
        except BaseException:
            with self._lock:
                departures.withdraw(caller)
                self._wake_next(departures)
            raise
        return self._send(step.alone()) if isinstance(outcome, Alone) else outcome

    def close(self) -> None:
        """Do nothing: every caller waits for its own outcome, so no request is left."""

    def _wait(self, departures: Departures, caller: Caller, arrived: Signal) -> Outcome | Alone:
        while caller.outcome is None:
            limit_s = max(LEAST_WAIT_S, departures.clear_at - time.monotonic())
            arrived.wait(FOREVER if caller.is_on_its_way else limit_s)
            trip = self._take_lead(departures, caller)
            if trip is not None and trip.is_shared:
                self._carry(departures, trip, caller)
            elif trip is not None:
                trip.settle_rest(self._send_alone(departures, caller.step, trip))
        return caller.outcome

    def _take_lead(self, departures: Departures, caller: Caller) -> Trip | None:
        """Return the callers of the next request if this thread is to send it, else None."""
        with self._lock:
            if caller.is_on_its_way or caller.outcome is not None or not departures.may_leave(time.monotonic()):
                return None
            return departures.take(time.monotonic(), caller)

    def _carry(self, departures: Departures, trip: Trip, caller: Caller) -> None:
        reading = self._read(departures, trip)
        try:
            for _ in reading:
                if caller.outcome is not None and not trip.is_over:
                    _start(self._read_on, reading, trip)
                    return
        except BaseException:
            reading.close()
            with self._lock:
                departures.turn_back(trip)
                departures.heard_of(trip)
                self._wake_next(departures)
            raise

    def _read_on(self, reading: Generator[None], trip: Trip) -> None:
        try:
            for _ in reading:
                pass
        finally:
            trip.settle_rest(cut_off())

    def _read(self, departures: Departures, trip: Trip) -> Generator[None]:
        """Send the request and settle its callers. Yields after each piece of the answer."""
        try:
            response = self._http.send(trip.request(), stream=True)
            try:
                self._clear(departures, trip)
                if response.status_code == SUCCESS:
                    for piece in response.iter_bytes():
                        for left, answer in trip.take(piece):
                            _start(self._unclaimed, left.step, answer)
                        yield
                    trip.settle_rest(cut_off())
                else:
                    response.read()
                    departures.refuse(trip, response)
            finally:
                response.close()
        except httpx.TransportError as error:
            self._clear(departures, trip)
            trip.settle_rest(error)

    def _send_alone(self, departures: Departures, step: Joinable, trip: object) -> Outcome:
        try:
            return self._send(step.alone())
        finally:
            self._clear(departures, trip)

    def _send(self, request: httpx.Request) -> Outcome:
        try:
            return self._http.send(request)
        except httpx.TransportError as error:
            return error

    def _clear(self, departures: Departures, trip: object) -> None:
        with self._lock:
            departures.heard_of(trip)
            self._wake_next(departures)

    def _wake_next(self, departures: Departures) -> None:
        if departures.waiting and departures.may_leave(time.monotonic()):
            departures.waiting[0].wake()


def _start(work: Callable[..., None], *arguments: object) -> None:
    threading.Thread(target=work, args=arguments, name="swarm calls", daemon=True).start()
