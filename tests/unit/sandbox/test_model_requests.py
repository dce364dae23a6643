"""What of a program's HTTP requests reaches the server: plain requests to a model, one on each connection."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest

from swarm.sandbox.outside import NotForwarded, model_forwarder, read_head


def head(first: str, *fields: str) -> bytes:
    return "\r\n".join([first, *fields, "", ""]).encode()


CARRIED = [
    "POST /v1/chat/completions HTTP/1.1",
    "POST /e/sk-ep_a.b~c-d/v1/chat/completions?x=1 HTTP/1.1",
    "GET /v1/models HTTP/1.1",
    "GET /v1/models/some-org/swarm-7b HTTP/1.1",
    "POST /v1/messages/count_tokens HTTP/1.1",
    "POST /tokenize HTTP/1.1",
    "POST /e/key/detokenize HTTP/1.1",
]
REFUSED = [
    "PATCH /v1/swarm/batch/policy HTTP/1.1",
    "GET /v1/swarm/status HTTP/1.1",
    "POST /v1/swarm/engine/stop HTTP/1.1",
    "POST /v1/swarm HTTP/1.1",
    "POST /v1/%73warm/engine/stop HTTP/1.1",
    "POST /v1//swarm/engine/stop HTTP/1.1",
    "POST //v1/swarm/engine/stop HTTP/1.1",
    "POST /v1/./swarm/engine/stop HTTP/1.1",
    "POST /v1/models/../swarm/engine/stop HTTP/1.1",
    "POST /e/key/v1/swarm/engine/stop HTTP/1.1",
    "POST http://host/v1/swarm/engine/stop HTTP/1.1",
    "POST /v1/models\\..\\swarm HTTP/1.1",
    "GET /metrics HTTP/1.1",
    "GET /docs HTTP/1.1",
    "GET / HTTP/1.1",
    "PUT /v1/models HTTP/1.1",
    "CONNECT host:1 HTTP/1.1",
    "GET /v1/models HTTP/1.0",
    "GET  /v1/models HTTP/1.1",
    "GET /v1/models",
]


@pytest.mark.parametrize("first", CARRIED)
def test_requests_to_a_model_are_carried(first: str) -> None:
    request = read_head(head(first, "Host: h", "Authorization: Bearer k", "Content-Length: 12"), "")
    assert request.body_bytes == 12
    assert request.head == head(first, "Host: h", "Authorization: Bearer k", "Content-Length: 12", "connection: close")


@pytest.mark.parametrize("first", REFUSED)
def test_requests_to_anything_else_are_refused(first: str) -> None:
    with pytest.raises(NotForwarded):
        read_head(head(first, "Host: h"), "")


def test_a_server_below_a_path_is_reached_below_it_alone() -> None:
    assert read_head(head("GET /runs/a/v1/models HTTP/1.1"), "/runs/a").body_bytes == 0
    for path in ("/v1/models", "/runs/b/v1/models", "/runs/a/v1/swarm/status"):
        with pytest.raises(NotForwarded):
            read_head(head(f"GET {path} HTTP/1.1"), "/runs/a")


AMBIGUOUS = [
    ("Transfer-Encoding: chunked",),
    ("transfer-encoding : chunked",),
    ("Content-Length: 1", "Content-Length: 2"),
    ("Content-Length: +1",),
    ("Content-Length: 99999999999",),
    ("Content-Length: 2000000000",),
    ("X: a\nTransfer-Encoding: chunked",),
    (" folded: line",),
    ("no colon",),
    (": no name",),
]


@pytest.mark.parametrize("fields", AMBIGUOUS)
def test_requests_that_two_servers_could_read_differently_are_refused(fields: tuple[str, ...]) -> None:
    with pytest.raises(NotForwarded):
        read_head(head("POST /v1/models HTTP/1.1", *fields), "")


def test_what_is_said_of_the_connection_is_said_anew() -> None:
    fields = ("Connection: keep-alive, x", "Keep-Alive: 5", "Expect: 100-continue", "Upgrade: h2c", "X: y")
    request = read_head(head("GET /v1/models HTTP/1.1", *fields), "")
    assert request.head == head("GET /v1/models HTTP/1.1", "X: y", "connection: close")


class Upstream:
    """Takes connections and keeps what comes; answers each with `answer` once `expected` bytes are there."""

    def __init__(self, answer: bytes, expected: int) -> None:
        self.received: list[bytes] = []
        self._answer, self._expected = answer, expected

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = await reader.readexactly(self._expected)
        writer.write(self._answer)
        await writer.drain()
        self.received.append(data + await reader.read())
        writer.close()


def exchange(sent: bytes, upstream: Upstream) -> bytes:
    """What comes back to a guest that sends these bytes and waits."""

    async def run() -> bytes:
        server = await asyncio.start_server(upstream, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        gate = await asyncio.start_server(
            model_forwarder(lambda: asyncio.open_connection("127.0.0.1", port), ""), "127.0.0.1", 0
        )
        async with server, gate:
            reader, writer = await asyncio.open_connection("127.0.0.1", gate.sockets[0].getsockname()[1])
            writer.write(sent)
            await writer.drain()
            read = asyncio.ensure_future(reader.read())
            await asyncio.wait({read}, timeout=2)
            writer.close()
            answer = await read
            await asyncio.sleep(0.1)
        return answer

    return asyncio.run(run())


def test_a_second_request_on_the_same_connection_is_not_carried() -> None:
    first = head("POST /v1/models HTTP/1.1", "Content-Length: 3")
    written = read_head(first, "").head
    upstream = Upstream(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok", len(written) + 3)
    answer = exchange(first + b"abc" + head("POST /v1/swarm/engine/stop HTTP/1.1"), upstream)
    assert answer.endswith(b"ok")
    assert upstream.received == [written + b"abc"]


def test_a_refused_request_is_answered_and_reaches_nobody() -> None:
    upstream = Upstream(b"", 1)
    answer = exchange(head("POST /v1/swarm/engine/stop HTTP/1.1"), upstream)
    assert answer.startswith(b"HTTP/1.1 403 Forbidden\r\n")
    assert b"may reach the routes of the model" in answer
    assert upstream.received == []


@pytest.fixture
def nobody() -> Iterator[int]:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        yield closed.getsockname()[1]


def test_a_server_that_is_gone_ends_the_connection(nobody: int) -> None:
    async def run() -> bytes:
        gate = await asyncio.start_server(
            model_forwarder(lambda: asyncio.open_connection("127.0.0.1", nobody), ""), "127.0.0.1", 0
        )
        async with gate:
            reader, writer = await asyncio.open_connection("127.0.0.1", gate.sockets[0].getsockname()[1])
            writer.write(head("GET /v1/models HTTP/1.1"))
            answer = await reader.read()
            writer.close()
            return answer

    assert asyncio.run(run()) == b""
