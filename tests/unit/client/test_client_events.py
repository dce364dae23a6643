"""The event stream: read to its end, taken up again where it broke, refused in plain words."""

from __future__ import annotations

import itertools
import json
import time
from typing import Any

import pytest
from server_processes import free_port

from swarm.client import AsyncSwarmClient, SwarmClient
from swarm.client.events import EventFeed
from swarm.client.exchange import Server
from swarm.errors import Forbidden, ServerUnreachable, SwarmError

pytestmark = pytest.mark.anyio

STREAM = {"content-type": "text/event-stream; charset=utf-8"}


def event(event_id: int, kind: str = "engine.state") -> str:
    body = json.dumps({"event_id": event_id, "kind": kind, "detail": {"n": event_id}, "at": 1.0})
    return f"id: {event_id}\nevent: {kind}\ndata: {body}\n\n"


@pytest.fixture
def stream(canned: Any) -> Any:
    def make(*event_ids: int, cut: str = "") -> Any:
        text = ": hello\n\n" + "".join(map(event, event_ids)) + cut
        return canned(200, text.encode(), STREAM)

    return make


def test_a_broken_stream_goes_on_after_the_last_event(scripted: Any, stream: Any, canned: Any, refusal: Any) -> None:
    scripted.script(
        stream(4, 5, cut="id: 6\ndata: {"),
        canned(body=None),
        refusal(503, "engine_not_ready", retry_after="0"),
        stream(5, 6),
        stream(7),
    )
    with SwarmClient(scripted.url) as client:
        read = [found.event_id for found in itertools.islice(client.events(3), 4)]
    assert read == [4, 5, 6, 7]
    assert [heard.headers["last-event-id"] for heard in scripted.heard] == ["3", "5", "5", "5", "6"]
    assert scripted.heard[0].headers["accept"] == "text/event-stream"
    assert scripted.heard[0].path == "/v1/swarm/events?after_id=3"


def test_a_server_that_was_started_anew_is_listened_to_again(scripted: Any, stream: Any) -> None:
    scripted.script(stream(1), stream(2))
    scripted.closes_connections = True
    with SwarmClient(scripted.url) as client:
        events = client.events()
        assert next(events).event_id == 1
        scripted.close()
        scripted.start()
        assert next(events).event_id == 2


def test_a_server_that_stays_away_ends_the_stream(scripted: Any, stream: Any) -> None:
    scripted.script(stream(1))
    scripted.closes_connections = True
    with SwarmClient(scripted.url) as client:
        events = client.events(patience=0.5)
        next(events)
        scripted.close()
        started_at = time.monotonic()
        with pytest.raises(ServerUnreachable):
            next(events)
        assert time.monotonic() - started_at > 0.4
        scripted.start()


def test_a_refused_stream_raises_what_the_server_says(scripted: Any, refusal: Any, canned: Any) -> None:
    with SwarmClient(scripted.url) as client:
        scripted.script(refusal(403, "forbidden", "observers only"))
        with pytest.raises(Forbidden, match="observers only"):
            next(client.events())
        scripted.script(canned(body={"events": []}))
        with pytest.raises(SwarmError, match="same version"):
            next(client.events())
        scripted.script(canned(200, b"data: 17\n\n", STREAM))
        with pytest.raises(SwarmError, match="same version"):
            next(client.events())


def test_an_unknown_address_is_reported_at_once() -> None:
    with SwarmClient(f"http://127.0.0.1:{free_port()}") as client, pytest.raises(ServerUnreachable):
        next(client.events())


async def test_async_stream_does_the_same(scripted: Any, stream: Any) -> None:
    scripted.script(stream(1), stream(2))
    read: list[int] = []
    async with AsyncSwarmClient(scripted.url) as client:
        events = client.events()
        async for found in events:
            read.append(found.event_id)
            if len(read) == 2:
                break
        await events.aclose()
    assert read == [1, 2]


def test_data_over_several_lines_is_one_event() -> None:
    feed = EventFeed(Server("http://x", {}, 1.0), 0, 1.0)
    body = json.dumps({"event_id": 9, "kind": "k", "detail": {}, "at": 0.0}, indent=1)
    lines = [f"data: {line}" for line in body.splitlines()]
    assert [feed.take(line) for line in lines] == [None] * len(lines)
    found = feed.take("")
    assert found is not None
    assert found.event_id == 9


def test_past_events_are_paged(scripted: Any, canned: Any) -> None:
    events = [{"event_id": n, "kind": "k", "detail": {}, "at": 0.0} for n in range(1, 1003)]
    scripted.script(canned(body={"events": events[:1000]}), canned(body={"events": events[1000:]}))
    with SwarmClient(scripted.url) as client:
        assert [found.event_id for found in client.past_events()] == list(range(1, 1003))
    assert [heard.path.partition("?")[2] for heard in scripted.heard] == [
        "after_id=0&limit=1000",
        "after_id=1000&limit=1000",
    ]
