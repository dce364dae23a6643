"""The event stream: the request that opens it, the parsing of its lines, and the reconnection."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator

import httpx
from pydantic import ValidationError

from swarm.client.exchange import FIRST_PAUSE_S, MAX_PAUSE_S, Server, error_of, spread, unreachable
from swarm.client.io import Io
from swarm.errors import SwarmError, Unavailable
from swarm.schemas import API_PREFIX, EventView

PATH = f"{API_PREFIX}/events"
CONTENT_TYPE = "text/event-stream"
# The server sends something more often than this, so a connection that is silent for longer is dead.
MAX_SILENCE_S = 60.0


async def follow_events(io: Io, server: Server, after_id: int, patience_s: float) -> AsyncGenerator[EventView]:
    """Yield the events after `after_id` without end, over as many connections as that takes."""
    feed = EventFeed(server, after_id, patience_s)
    while True:
        try:
            async with io.stream(feed.request()) as response:
                if feed.opened(response):
                    async for line in io.lines(response):
                        if (event := feed.take(line)) is not None:
                            yield event
                    pause_s = FIRST_PAUSE_S
                else:
                    await io.read(response)
                    pause_s = feed.refused(response)
        except httpx.TransportError as failure:
            pause_s = feed.lost(failure)
        await io.sleep(pause_s)


class EventFeed:
    """One reader of the events after `after_id`; `patience_s` limits the time without an answer of the server.

    The server numbers its events durably, so a broken stream continues after the last event that was read. Format:
    Server-Sent Events (WHATWG HTML, section 9.2), with one EventView as JSON per event.
    """

    def __init__(self, server: Server, after_id: int, patience_s: float) -> None:
        self._server = server
        self._last_id = after_id
        self._patience_s = patience_s
        self._away_since: float | None = None
        self._pause_s = FIRST_PAUSE_S
        self._data: list[str] = []

    def request(self) -> httpx.Request:
        self._data = []
        timeout = httpx.Timeout(MAX_SILENCE_S, connect=min(10.0, self._server.timeout_s))
        return httpx.Request(
            "GET",
            f"{self._server.url}{PATH}",
            params={"after_id": self._last_id},
            headers={**self._server.headers, "accept": CONTENT_TYPE, "last-event-id": str(self._last_id)},
            extensions={"timeout": timeout.as_dict()},
        )

    def opened(self, response: httpx.Response) -> bool:
        """Return whether the response is the stream. If not, the caller reads its body and calls `refused`."""
        self._server.is_known = True
        return response.is_success and response.headers.get("content-type", "").startswith(CONTENT_TYPE)

    def refused(self, response: httpx.Response) -> float:
        """Return the seconds to wait after a refusal. Raises the server's error unless it is an Unavailable."""
        error = error_of(response) or SwarmError(
            f"{self._server.url}{PATH} did not answer with an event stream: check that client and server have the same"
            " version"
        )
        if not isinstance(error, Unavailable):
            raise error
        return max(error.retry_after_s, self._pause(error))

    def lost(self, failure: httpx.TransportError) -> float:
        """Return the seconds to wait after a lost connection. Raises ServerUnreachable when the patience is over."""
        error = unreachable(self._server, "GET", PATH, failure)
        if not self._server.is_known:
            raise error from failure
        return self._pause(error)

    def take(self, line: str) -> EventView | None:
        """Return the event that this line completes, if any. Raises SwarmError for an event that cannot be parsed."""
        self._away_since = None
        self._pause_s = FIRST_PAUSE_S
        if line.startswith("data:"):
            self._data.append(line[5:].removeprefix(" "))
        if line or not self._data:
            return None
        content, self._data = "\n".join(self._data), []
        try:
            event = EventView.model_validate_json(content)
        except ValidationError as error:
            raise SwarmError(
                f"{self._server.url}{PATH} sent an event that this client cannot parse: check that client and server"
                " have the same version"
            ) from error
        if event.event_id <= self._last_id:
            return None
        self._last_id = event.event_id
        return event

    def _pause(self, error: SwarmError) -> float:
        now = time.monotonic()
        self._away_since = now if self._away_since is None else self._away_since
        if now - self._away_since >= self._patience_s:
            raise error
        seconds = spread(self._pause_s)
        self._pause_s = min(2 * self._pause_s, MAX_PAUSE_S)
        return seconds
