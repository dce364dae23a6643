"""Routes that begin or end many episodes in one request. Each entry is checked and answered as a request of its own.

Place in the flow: HTTP to the episodes of the started job. episode_routes.py begins and ends the single episode. The
answer has one line per entry, sent as soon as its result is known, so that a waiting entry delays no other. This module
does not know why an entry waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, TypeAdapter
from starlette.types import Receive, Scope, Send

from swarm.errors import SwarmError
from swarm.gateway.control.episode_routes import begin_one, end_one, model_url
from swarm.gateway.control.server_routes import Served, require_service
from swarm.gateway.http.errors import detail_of, internal_error, retry_after_s, status_of
from swarm.gateway.http.openapi import answer_lines, errors
from swarm.gateway.http.routes import parse_body, until_left
from swarm.ledger import Ledger
from swarm.rollout.admission import Departure
from swarm.schemas import AnswerOfMany, BeginEpisodeRequest, BeginManyRequest, EndManyRequest, EndOfMany

logger = logging.getLogger(__name__)

MEDIA_TYPE = "application/x-ndjson"

Work = Callable[[Departure], Awaitable[BaseModel]]
"""Carries out one entry. It calls its argument only if the entry has to wait; that returns when the caller leaves."""

Entry = TypeVar("Entry", bound=BaseModel)


def add_many_routes(router: APIRouter, served: Served, ledger: Ledger) -> None:
    begin_entry, end_entry = TypeAdapter(BeginEpisodeRequest), TypeAdapter(EndOfMany)

    @router.post(
        "/episodes/begin_many",
        summary="Begin many episodes",
        status_code=200,
        response_class=Answers,
        responses={200: _lines(201), **errors(503)},
    )
    async def begin_many(body: BeginManyRequest, request: Request) -> Response:
        """Begin many episodes. The answer has one line per entry.

        The lines of entries that may begin now, or are refused, come at once. An entry that has to wait gets its line
        when it may begin, at the latest after its own `wait_s`.
        """
        service = require_service(served)
        base_url = model_url(request)

        async def carry_out(entry: BeginEpisodeRequest, departure: Departure) -> BaseModel:
            return await begin_one(service, entry, base_url, departure)

        return Answers(201, [_work(begin_entry, entry, carry_out) for entry in body.episodes])

    @router.post(
        "/episodes/end_many",
        summary="End many episodes with their rewards",
        status_code=200,
        response_class=Answers,
        responses={200: _lines(200)},
    )
    async def end_many(body: EndManyRequest) -> Response:
        """End many episodes. The answer has one line per entry.

        Each entry ends its episode exactly once and is durable before its line. All are committed to the ledger
        together.
        """

        async def carry_out(entry: EndOfMany, departure: Departure) -> BaseModel:
            return await end_one(served, ledger, entry.episode_id, entry)

        return Answers(200, [_work(end_entry, entry, carry_out) for entry in body.episodes])


def _work(
    adapter: TypeAdapter[Entry], entry: object, carry_out: Callable[[Entry, Departure], Awaitable[BaseModel]]
) -> Work:
    """Return the work of one entry. The check is part of it, so that an invalid entry is refused alone."""

    async def work(departure: Departure) -> BaseModel:
        return await carry_out(parse_body(adapter, entry), departure)

    return work


class Answers(Response):
    """The streaming response that carries out all entries at once. `status` is that of an entry that succeeds."""

    media_type = MEDIA_TYPE

    def __init__(self, status: int, work: Sequence[Work]) -> None:
        super().__init__()
        self._status = status
        self._work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        entries = _Entries(self._status, self._work, receive)
        try:
            lines = await entries.known_at_once()
            headers = [(b"content-type", MEDIA_TYPE.encode())]
            if entries.is_over:
                headers.append((b"content-length", str(len(lines)).encode()))
            else:
                headers += [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            while not entries.is_over:
                if lines:
                    await send({"type": "http.response.body", "body": lines, "more_body": True})
                lines = await entries.next_known()
            await send({"type": "http.response.body", "body": lines})
        finally:
            await entries.close()


class _Entries:
    """The entries of one request while they are carried out, each as an asyncio task."""

    def __init__(self, status: int, work: Sequence[Work], receive: Receive) -> None:
        self._status = status
        self._receive = receive
        self._lines: list[tuple[int, bytes]] = []
        self._left = len(work)
        self._moving = set(range(len(work)))
        self._changed = asyncio.Event()
        self._departure: asyncio.Task[None] | None = None
        self._tasks = [asyncio.create_task(self._carry_out(index, each)) for index, each in enumerate(work)]

    @property
    def is_over(self) -> bool:
        """True if all lines were taken and no entry is left."""
        return not self._left and not self._lines

    async def known_at_once(self) -> bytes:
        """Return the lines of all entries that need not wait."""
        while self._moving:
            self._changed.clear()
            await self._changed.wait()
        return self._take()

    async def next_known(self) -> bytes:
        """Return one or more further lines, once there are any."""
        while not self._lines:
            self._changed.clear()
            await self._changed.wait()
        # Entries that begin together are recorded together: one turn of the loop lets all their lines arrive.
        await asyncio.sleep(0)
        return self._take()

    async def close(self) -> None:
        running = [task for task in (*self._tasks, self._departure) if task is not None and not task.done()]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _take(self) -> bytes:
        lines, self._lines = self._lines, []
        return b"".join(line for _, line in sorted(lines))

    async def _carry_out(self, index: int, work: Work) -> None:
        try:
            answer = await work(lambda: self._wait(index))
            line = b'{"index":%d,"status":%d,"answer":%b}\n' % (
                index,
                self._status,
                answer.__pydantic_serializer__.to_json(answer),
            )
        except SwarmError as error:
            line = _refusal(index, error)
        except Exception as error:
            logger.error("unexpected error in entry %d of a request for many episodes", index, exc_info=error)
            line = _refusal(index, internal_error())
        self._lines.append((index, line))
        self._left -= 1
        self._moving.discard(index)
        self._changed.set()

    async def _wait(self, index: int) -> None:
        """Mark an entry as waiting. Returns once the caller has disconnected."""
        self._moving.discard(index)
        self._changed.set()
        if self._departure is None:
            self._departure = asyncio.create_task(until_left(self._receive))
        await asyncio.wait({self._departure})


def _refusal(index: int, error: SwarmError) -> bytes:
    refused = AnswerOfMany(
        index=index, status=status_of(error), error=detail_of(error), retry_after_s=retry_after_s(error)
    )
    return refused.model_dump_json(exclude={"answer"}).encode() + b"\n"


def _lines(status: int) -> dict[str, Any]:
    example = (
        f'{{"index":0,"status":{status},"answer":{{"episode_id":"ep-1"}}}}\n'
        '{"index":1,"status":503,"error":{"message":"the engine is TRAINING: try again","type":"unavailable_error",'
        '"param":null,"code":"rollout_paused"},"retry_after_s":1}\n'
    )
    return {
        "description": "One line per entry, in the order in which they are known.",
        "content": answer_lines(AnswerOfMany, example),
    }
