"""Routes of the server's events: a page of JSON, or a stream of server-sent events."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from starlette.types import Receive, Scope, Send

from swarm.errors import BadRequest, LedgerError, Unavailable
from swarm.gateway.http.openapi import errors, event_stream
from swarm.gateway.http.query_strings import MAX_ID, EventQuery
from swarm.gateway.http.routes import until_left
from swarm.ledger import EventRow, Ledger
from swarm.schemas import EventPage, EventView

logger = logging.getLogger(__name__)

KEEP_ALIVE_S = 15.0
"""The pause after which a stream sends a comment. Proxies close connections that are silent for 30 to 60 s."""

RECONNECT_MS = 1000
EVENTS_AT_ONCE = 500
GATHER_S = 0.05
"""The time during which events are collected and sent together. It limits reads, as each watcher reads the ledger."""

MAX_WATCHERS = 64
MEDIA_TYPE = "text/event-stream"

_STREAM_EXAMPLE = (
    'id: 7\nevent: engine.state\ndata: {"event_id":7,"kind":"engine.state","detail":{"state":"ROLLING","reason":null},'
    '"at":1767225600.0}\n\n'
)
_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "A page of events, or a stream. The `data` of each event in the stream is an EventView.",
        "content": event_stream("id", "event", "data", "retry", example=_STREAM_EXAMPLE),
    },
    **errors(503, 507),
}


@dataclass(slots=True)
class EventStreams:
    """The open event streams of one server. It must be used from one event loop."""

    ledger: Ledger
    keep_alive_s: float = KEEP_ALIVE_S
    max_watchers: int = MAX_WATCHERS
    _open: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])
    _is_closed: bool = False

    @property
    def watchers(self) -> int:
        return len(self._open)

    async def serve(self, after_id: int, receive: Receive, send: Send) -> None:
        """Send all events after `after_id` until the watcher disconnects or `close` is called.

        Raises Unavailable before anything is sent if the server shuts down or has its maximum of watchers.
        """
        if self._is_closed:
            raise Unavailable("the server is shutting down: follow the events once it is back", retry_after_s=2)
        if len(self._open) >= self.max_watchers:
            raise Unavailable(
                f"the events have {self.max_watchers} watchers, the most allowed: close one, or try again later",
                retry_after_s=30,
            )
        following = asyncio.create_task(self._follow(after_id, send), name="event stream")
        leaving = asyncio.create_task(until_left(receive), name="watcher")
        self._open.add(following)
        try:
            await asyncio.wait({following, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if following.done() and not following.cancelled():
                following.result()
        except LedgerError as error:
            logger.error("an event stream ends, as the ledger cannot be read: %s", error.message)
        finally:
            self._open.discard(following)
            following.cancel()
            leaving.cancel()
            await asyncio.gather(following, leaving, return_exceptions=True)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def close(self) -> None:
        """Close all streams. An open one would keep the server from shutting down."""
        self._is_closed = True
        for following in self._open:
            following.cancel()

    async def _follow(self, after_id: int, send: Send) -> None:
        headers = [(b"content-type", f"{MEDIA_TYPE}; charset=utf-8".encode()), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await _send_text(send, f"retry: {RECONNECT_MS}\n\n")
        last = after_id
        while True:
            events = await self.ledger.wait_for_events(last, EVENTS_AT_ONCE, self.keep_alive_s)
            if not events:
                await _send_text(send, ": keep-alive\n\n")
                continue
            await _send_text(send, _render(events))
            last = events[-1].event_id
            await asyncio.sleep(GATHER_S)


class EventStream(Response):
    """The streaming response for one watcher."""

    def __init__(self, streams: EventStreams, after_id: int) -> None:
        super().__init__(media_type=MEDIA_TYPE)
        self._streams = streams
        self._after_id = after_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._streams.serve(self._after_id, receive, send)


def add_event_routes(router: APIRouter, streams: EventStreams) -> None:
    @router.get("/events", summary="Read or follow the events", response_model=EventPage, responses=_RESPONSES)
    async def get_events(query: Annotated[EventQuery, Query()], request: Request) -> Response | EventPage:
        """Return the events of the server, oldest first, as a page or as a stream.

        Events are changes of state, closed and trained batches, checkpoints, recoveries, policy changes and revised
        rewards. With the header `Last-Event-ID`, a stream continues after that event.
        """
        if query.last is not None and query.model_fields_set & {"after_id", "limit"}:
            raise BadRequest("last: selects the newest events, so send it without after_id and limit", param="last")
        newest = None if query.last is None else await streams.ledger.newest_events(query.last)
        if query.stream or MEDIA_TYPE in request.headers.get("accept", ""):
            start = newest[0].event_id - 1 if newest else query.after_id
            return EventStream(streams, _last_seen(request, start))
        rows = await streams.ledger.events(query.after_id, query.limit) if newest is None else newest
        return EventPage.model_validate({"events": rows}, from_attributes=True)


def _last_seen(request: Request, start: int) -> int:
    given = request.headers.get("last-event-id")
    if given is None or given == "":
        return start
    if not (given.isascii() and given.isdecimal() and len(given) <= 19 and int(given) <= MAX_ID):
        raise BadRequest("Last-Event-ID is no event id of this server: send a whole number", param="last-event-id")
    return int(given)


def _render(events: Sequence[EventRow]) -> str:
    views = (EventView.model_validate(row, from_attributes=True) for row in events)
    return "".join(f"id: {view.event_id}\nevent: {view.kind}\ndata: {view.model_dump_json()}\n\n" for view in views)


async def _send_text(send: Send, text: str) -> None:
    await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
