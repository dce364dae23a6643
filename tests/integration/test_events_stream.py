"""Events over real HTTP: the page, the stream, and that a stream loses nothing and holds nobody."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests_support import run_batch, wait_for_state, wait_for_step

import swarm.server.http
from swarm.errors import Unavailable
from swarm.gateway.control.event_routes import EventStreams
from swarm.job import TrainJob
from swarm.ledger import Ledger

JOB = TrainJob(engine="fake", batch_size=1, num_repeat=2, drain_timeout_s=2)
EVENTS = "/v1/swarm/events"
STREAM = {"accept": "text/event-stream"}


@pytest.fixture
def http(start_server: Any) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=start_server(JOB).url, timeout=60) as client:
        wait_for_state(client, "ROLLING")
        # The state is told before it is on record.
        deadline = time.monotonic() + 60
        while page(client)[-1]["detail"].get("state") != "ROLLING":
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield client


def read_events(lines: Iterator[str], count: int) -> list[dict[str, str]]:
    """The fields of the next `count` events of a stream."""
    events: list[dict[str, str]] = []
    fields: dict[str, str] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")
        elif "data" in fields:
            events.append(fields)
            fields = {}
            if len(events) == count:
                return events
        else:
            fields = {}
    raise AssertionError(f"the stream ended after {len(events)} of {count} events")


def page(http: httpx.Client, **query: Any) -> list[dict[str, Any]]:
    reply = http.get(EVENTS, params=query)
    assert reply.status_code == 200, reply.text
    return reply.json()["events"]


def watchers(http: httpx.Client) -> float:
    [line] = [line for line in http.get("/metrics").text.splitlines() if line.startswith("swarm_event_watchers ")]
    return float(line.split()[1])


def test_a_page_is_oldest_first_and_goes_on_after_an_id(http: httpx.Client) -> None:
    run_batch(http, tasks=1, repeats=2)
    wait_for_step(http, 1)
    events = page(http)
    assert [event["event_id"] for event in events] == list(range(1, len(events) + 1))
    kinds = [event["kind"] for event in events]
    assert kinds[0] == "job.started"
    assert kinds.index("batch.closed") < kinds.index("batch.trained")
    assert page(http, after_id=2, limit=3) == events[2:5]
    assert page(http, after_id=10_000) == []


def test_the_newest_are_asked_for_by_number(http: httpx.Client) -> None:
    run_batch(http, tasks=1, repeats=2)
    wait_for_step(http, 1)
    events = page(http)
    assert page(http, last=2) == events[-2:]
    assert page(http, last=1000) == events
    with http.stream("GET", EVENTS, params={"last": 2}, headers=STREAM) as reply:
        assert [shown["id"] for shown in read_events(reply.iter_lines(), 2)] == [
            str(event["event_id"]) for event in events[-2:]
        ]
    # A browser that comes back asks for the same again, and says where it was.
    headers = {**STREAM, "last-event-id": "1"}
    with http.stream("GET", EVENTS, params={"last": 1}, headers=headers) as reply:
        assert read_events(reply.iter_lines(), 1)[0]["id"] == "2"
    refused = http.get(EVENTS, params={"last": 2, "after_id": 1})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "last")


@pytest.mark.parametrize("ask", [{"headers": STREAM}, {"params": {"stream": "true"}}])
def test_a_stream_tells_the_past_and_then_what_happens(http: httpx.Client, ask: dict[str, Any]) -> None:
    past = page(http)
    with http.stream("GET", EVENTS, **ask) as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        lines = reply.iter_lines()
        for shown, event in zip(read_events(lines, len(past)), past, strict=True):
            assert (shown["id"], shown["event"]) == (str(event["event_id"]), event["kind"])
            assert json.loads(shown["data"]) == event
        http.patch("/v1/swarm/batch/policy", json={"batch_size": 7}).raise_for_status()
        [shown] = read_events(lines, 1)
        assert shown["event"] == "job.changed"


@pytest.mark.parametrize("last", ["-1", "abc", "1.5", "9" * 19, "9" * 400])
def test_an_id_that_was_never_given_out_is_refused(http: httpx.Client, last: str) -> None:
    reply = http.get(EVENTS, headers={**STREAM, "last-event-id": last})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "last-event-id")


def test_no_event_of_a_fast_burst_is_lost_on_any_stream(http: httpx.Client) -> None:
    first = page(http)[-1]["event_id"]
    seen: list[list[int]] = []

    def watch(pause_s: float) -> None:
        with http.stream("GET", EVENTS, params={"after_id": first}, headers=STREAM) as reply:
            lines = reply.iter_lines()
            ids: list[int] = []
            for _ in range(300):
                ids.append(int(read_events(lines, 1)[0]["id"]))
                time.sleep(pause_s)
            seen.append(ids)

    threads = [threading.Thread(target=watch, args=(pause_s,)) for pause_s in (0.0, 0.0, 0.002)]
    for thread in threads:
        thread.start()

    async def burst() -> None:
        async with httpx.AsyncClient(base_url=http.base_url, timeout=60) as client:
            for start in range(0, 300, 20):
                replies = await asyncio.gather(
                    *(
                        client.patch("/v1/swarm/batch/policy", json={"batch_size": 2 + number})
                        for number in range(start, start + 20)
                    )
                )
                assert {reply.status_code for reply in replies} == {200}

    asyncio.run(burst())
    for thread in threads:
        thread.join(timeout=60)
    assert seen == [list(range(first + 1, first + 301))] * 3


def test_a_watcher_that_leaves_is_gone_at_once(http: httpx.Client) -> None:
    with contextlib.ExitStack() as streams:
        open_lines: list[Iterator[str]] = []
        for _ in range(3):
            reply = streams.enter_context(http.stream("GET", EVENTS, headers=STREAM))
            open_lines.append(reply.iter_lines())
            read_events(open_lines[-1], 1)
        assert watchers(http) == 3
    deadline = time.monotonic() + 60
    while watchers(http):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_open_streams_end_when_the_server_shuts_down(start_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # Were they left to the grace that requests have, this test would run into its own limit.
    monkeypatch.setattr(swarm.server.http, "GRACE_S", 600)
    server = start_server(JOB)
    with (
        httpx.Client(base_url=server.url, timeout=60) as http,
        http.stream("GET", EVENTS, headers=STREAM) as reply,
    ):
        lines = reply.iter_lines()
        read_events(lines, 1)
        httpx.post(f"{server.url}/v1/swarm/shutdown", timeout=60).raise_for_status()
        assert list(lines) is not None


class Watcher:
    """The two ends of one ASGI response."""

    def __init__(self) -> None:
        self.left = asyncio.Event()
        self.text = ""
        self.is_complete = False

    async def receive(self) -> dict[str, Any]:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.text += message.get("body", b"").decode()
        self.is_complete = message["type"] == "http.response.body" and not message["more_body"]

    async def until(self, fragment: str) -> None:
        async with asyncio.timeout(60):
            while fragment not in self.text:
                await asyncio.sleep(0.01)


def test_a_silent_stream_gives_signs_of_life_and_the_number_of_watchers_is_bounded(tmp_path: Path) -> None:
    async def scenario() -> None:
        with contextlib.closing(Ledger.open(tmp_path / "ledger.db")) as ledger:
            streams = EventStreams(ledger, keep_alive_s=0.1, max_watchers=2)
            ends = [Watcher() for _ in range(3)]
            running = [asyncio.create_task(streams.serve(0, end.receive, end.send)) for end in ends[:2]]
            await ends[1].until(": keep-alive\n\n: keep-alive\n\n")
            with pytest.raises(Unavailable, match="2 watchers"):
                await streams.serve(0, ends[2].receive, ends[2].send)
            assert ends[2].text == ""
            ends[0].left.set()
            await asyncio.wait_for(running[0], 60)
            third = asyncio.create_task(streams.serve(0, ends[2].receive, ends[2].send))
            await ledger.record_event("test.happened", {"line": "a\nb"})
            await ends[2].until("event: test.happened\ndata: ")
            assert '"line":"a\\nb"' in ends[2].text
            streams.close()
            await asyncio.wait_for(asyncio.gather(third, running[1]), 60)
            assert ends[1].is_complete and ends[2].is_complete
            with pytest.raises(Unavailable):
                await streams.serve(0, ends[0].receive, ends[0].send)

    asyncio.run(scenario())
