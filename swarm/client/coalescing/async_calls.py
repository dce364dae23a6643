"""Coalescing for the tasks of one event loop: a task of its own sends each shared request.

Place in the flow: AsyncSwarmClient hands it the calls that may share a request. It knows nothing of their content.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import httpx

from swarm.client.coalescing.departures import Alone, Caller, Departures, Trip, cut_off
from swarm.client.plans.exchange import Joinable, Outcome
from swarm.schemas import AnswerOfMany

SUCCESS = 200


class TaskCoalescer:
    """The coalescer of an AsyncSwarmClient, for the tasks of the event loop in which it is first used."""

    def __init__(self, http: httpx.AsyncClient, unclaimed: Callable[[Joinable, AnswerOfMany], Awaitable[None]]) -> None:
        """Create a coalescer. `unclaimed` gets the answer to a call whose task was cancelled before it came."""
        self._http = http
        self._unclaimed = unclaimed
        self._departures: dict[str, Departures] = {}
        self._under_way: dict[Trip, asyncio.Task[None]] = {}
        self._clean_ups: set[asyncio.Task[None]] = set()
        self._timers: dict[Departures, asyncio.TimerHandle] = {}

    async def carry_out(self, step: Joinable) -> Outcome:
        departures = self._departures.setdefault(step.path, Departures())
        now = time.monotonic()
        if departures.may_leave(now) and not departures.waiting:
            departures.leave(step, now)
            try:
                return await self._send(step)
            finally:
                self._clear(departures, step)
        outcome = await self._wait(departures, step)
        return await self._send(step) if isinstance(outcome, Alone) else outcome

    async def close(self) -> None:
        """Cancel the requests under way. Their callers get a connection error."""
        for timer in self._timers.values():
            timer.cancel()
        tasks = [*self._under_way.values(), *self._clean_ups]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _wait(self, departures: Departures, step: Joinable) -> Outcome | Alone:
        arrived = asyncio.Event()
        caller = Caller(step, arrived.set)
        departures.waiting.append(caller)
        self._look_again(departures)
        try:
            await arrived.wait()
        except BaseException:
            departures.withdraw(caller)
            self._break_off_deserted()
            raise
        return caller.outcome

    def _look_again(self, departures: Departures) -> None:
        if departures not in self._timers:
            left_s = max(0.0, departures.clear_at - time.monotonic())
            self._timers[departures] = asyncio.get_running_loop().call_later(left_s, self._on_time, departures)

    def _on_time(self, departures: Departures) -> None:
        del self._timers[departures]
        self._leave_if_due(departures)

    def _leave_if_due(self, departures: Departures) -> None:
        if departures.waiting and departures.may_leave(time.monotonic()):
            trip = departures.take(time.monotonic())
            self._under_way[trip] = asyncio.create_task(self._carry(departures, trip), name="swarm calls")
        if departures.waiting:
            self._look_again(departures)

    async def _carry(self, departures: Departures, trip: Trip) -> None:
        try:
            if trip.is_shared:
                await self._read(departures, trip)
            else:
                [caller] = trip.callers.values()
                trip.settle_rest(await self._send(caller.step))
        except httpx.TransportError as error:
            trip.settle_rest(error)
        finally:
            del self._under_way[trip]
            trip.settle_rest(cut_off())
            self._clear(departures, trip)

    async def _read(self, departures: Departures, trip: Trip) -> None:
        response = await self._http.send(trip.request(), stream=True)
        try:
            self._clear(departures, trip)
            if response.status_code == SUCCESS:
                async for piece in response.aiter_bytes():
                    for left, answer in trip.take(piece):
                        self._clean_up(left.step, answer)
            else:
                await response.aread()
                departures.refuse(trip, response)
        finally:
            await response.aclose()

    async def _send(self, step: Joinable) -> Outcome:
        try:
            return await self._http.send(step.alone())
        except httpx.TransportError as error:
            return error

    def _clean_up(self, step: Joinable, answer: AnswerOfMany) -> None:
        task = asyncio.ensure_future(self._unclaimed(step, answer))
        self._clean_ups.add(task)
        task.add_done_callback(self._clean_ups.discard)

    def _clear(self, departures: Departures, trip: object) -> None:
        departures.heard_of(trip)
        self._leave_if_due(departures)

    def _break_off_deserted(self) -> None:
        """Cancel the requests whose callers are all gone, so that the server begins no episodes for them."""
        for trip, task in self._under_way.items():
            if all(caller.is_gone for caller in trip.callers.values()):
                task.cancel()
