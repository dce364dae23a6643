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
