"""Connections are kept, shared by threads and tasks, and survive a server that closes them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from swarm import AsyncConnectionStack, ConnectionStack

pytestmark = pytest.mark.anyio


class Echo(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = f"{self.path} {self.client_address[1]}".encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        if self.path == "/close":
            self.send_header("connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Echo) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join(timeout=60)


def port_of(reply: httpx.Response) -> str:
    return reply.text.split()[1]


def test_one_caller_uses_one_connection(url: str) -> None:
    with httpx.Client(transport=ConnectionStack(), timeout=60) as http:
        assert len({port_of(http.get(f"{url}/{number}")) for number in range(10)}) == 1


def test_many_threads_get_their_own_replies_over_at_most_as_many_connections(url: str) -> None:
    with httpx.Client(transport=ConnectionStack(), timeout=60) as http, ThreadPoolExecutor(16) as pool:
        replies = list(pool.map(lambda number: http.get(f"{url}/{number}"), range(400)))
    assert [reply.text.split()[0] for reply in replies] == [f"/{number}" for number in range(400)]
    assert len({port_of(reply) for reply in replies}) <= 16


def test_a_connection_that_the_server_closed_is_replaced(url: str) -> None:
    with httpx.Client(transport=ConnectionStack(), timeout=60) as http:
        closed = port_of(http.get(f"{url}/close"))
        assert port_of(http.get(f"{url}/next")) != closed


def test_a_failed_connection_raises_and_leaves_nothing_behind() -> None:
    with httpx.Client(transport=ConnectionStack(), timeout=60) as http:
        for _ in range(2):
            with pytest.raises(httpx.ConnectError):
                http.get("http://127.0.0.1:9/")


def is_open(reply: httpx.Response) -> bool:
    return reply.extensions["network_stream"].get_extra_info("socket").fileno() >= 0


def test_a_connection_in_use_as_its_client_is_closed_is_closed_after_use(url: str) -> None:
    http = httpx.Client(transport=ConnectionStack(), timeout=60)
    with http.stream("GET", f"{url}/last") as reply:
        http.close()
        assert reply.read().startswith(b"/last")
    assert not is_open(reply)


def test_a_connection_whose_reply_was_broken_off_by_an_interrupt_is_closed(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(answer: object) -> None:
        raise KeyboardInterrupt

    with httpx.Client(transport=ConnectionStack(), timeout=60) as http:
        reply = http.send(http.build_request("GET", f"{url}/first"), stream=True)
        with monkeypatch.context() as patches, pytest.raises(KeyboardInterrupt):
            patches.setattr("httpcore.Response.close", interrupt)
            reply.close()
        assert not is_open(reply)
        assert http.get(f"{url}/next").text.startswith("/next")


def test_tasks_of_a_loop_share_connections_too(url: str) -> None:
    async def ask() -> list[str]:
        async with httpx.AsyncClient(transport=AsyncConnectionStack(), timeout=60) as http:
            first = [reply.text for reply in await asyncio.gather(*(http.get(f"{url}/{n}") for n in range(8)))]
            second = [reply.text for reply in await asyncio.gather(*(http.get(f"{url}/{n}") for n in range(8)))]
            return [*first, *second]

    texts = asyncio.run(ask())
    assert [text.split()[0] for text in texts] == [f"/{n}" for n in range(8)] * 2
    assert len({text.split()[1] for text in texts}) <= 8


async def test_a_connection_in_use_by_a_task_as_its_client_is_closed_is_closed_after_use(url: str) -> None:
    http = httpx.AsyncClient(transport=AsyncConnectionStack(), timeout=60)
    async with http.stream("GET", f"{url}/last") as reply:
        await http.aclose()
        assert (await reply.aread()).startswith(b"/last")
    assert not is_open(reply)
