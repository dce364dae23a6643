"""A proxy between clients and a server, in a thread of its own, that loses, cuts, delays and repeats what passes."""

from __future__ import annotations

import asyncio
import json
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

START_TIMEOUT_S = 20
EXCHANGE_TIMEOUT_S = 60
WAIT_S = 4.0
"""How long a delayed reply is held; longer than its client waits."""


class Fault(StrEnum):
    """What becomes of one attempt."""

    NONE = "none"
    LOSE_REQUEST = "the request never arrives"
    LOSE_REPLY = "the whole reply is lost"
    CUT_REPLY = "half of the reply arrives, then both connections break"
    BREAK_OFF = "both connections break while the server works"
    DELAY = "the reply comes after the client has gone, of which the server hears nothing"
    TWICE = "the server gets two copies at once"
    AGAIN = "the server gets a second copy after it has answered the first"
    LOSE_REPLY_OF_TWO = "the server gets two copies at once, and the reply is lost"


@dataclass(frozen=True)
class Attempt:
    """A request as it arrived. `headers` have lower-case names."""

    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def retry_count(self) -> int:
        return int(self.headers.get("x-stainless-retry-count", "0"))

    def encode(self, request_id: str | None) -> bytes:
        """As it is passed on. A proxy that sends copies marks them, as nginx and Envoy do."""
        headers = {**self.headers, "connection": "close"}
        if request_id is not None:
            headers["x-request-id"] = request_id
        lines = [f"POST {self.target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + self.body


@dataclass
class FaultyProxy:
    """It takes one request per connection, with a length, and a reply that ends with the connection.

    `choose` says what happens to an attempt. `met` are the faults in the order they happened, `differing` the pairs of
    replies to two copies of one attempt that did not say the same.
    """

    server_url: str
    choose: Callable[[Attempt], Fault]
    stamps_all: bool = False
    cut_after: Callable[[bytes], int] = lambda reply: len(reply) // 2
    break_off_after_s: float = 0.15
    met: list[Fault] = field(default_factory=list[Fault])
    differing: list[tuple[bytes, bytes]] = field(default_factory=list[tuple[bytes, bytes]])
    url: str = ""
    _tasks: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    @contextmanager
    def running(self) -> Iterator[FaultyProxy]:
        """Its thread serves within the block."""
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name="faulty-proxy", daemon=True)
        thread.start()
        server = asyncio.run_coroutine_threadsafe(self._listen(), loop).result(START_TIMEOUT_S)
        try:
            yield self
        finally:
            asyncio.run_coroutine_threadsafe(self._close(server), loop).result(START_TIMEOUT_S)
            loop.call_soon_threadsafe(loop.stop)
            thread.join(START_TIMEOUT_S)
            loop.close()

    async def _listen(self) -> asyncio.Server:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        return server

    async def _close(self, server: asyncio.Server) -> None:
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            with suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
                async with asyncio.timeout(EXCHANGE_TIMEOUT_S):
                    await self._exchange(await _read(reader), reader, writer)
        finally:
            await _hang_up(writer)

    async def _exchange(self, attempt: Attempt, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        fault = self.choose(attempt)
        self.met.append(fault)
        copies = fault in {Fault.TWICE, Fault.AGAIN, Fault.LOSE_REPLY_OF_TWO}
        request = attempt.encode(uuid.uuid4().hex if copies or self.stamps_all else None)
        match fault:
            case Fault.NONE:
                await self._relay(request, reader, writer)
            case Fault.LOSE_REQUEST:
                return
            case Fault.LOSE_REPLY:
                await self._ask(request)
            case Fault.CUT_REPLY:
                reply = await self._ask(request)
                writer.write(reply[: self.cut_after(reply)])
                await writer.drain()
            case Fault.BREAK_OFF:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self.break_off_after_s):
                        await self._ask(request)
            case Fault.DELAY:
                reply = await self._ask(request)
                await asyncio.sleep(WAIT_S)
                writer.write(reply)
            case Fault.TWICE | Fault.LOSE_REPLY_OF_TWO:
                first, second = await asyncio.gather(self._ask(request), self._ask(request))
                self._compare(first, second)
                writer.write(b"" if fault is Fault.LOSE_REPLY_OF_TWO else first)
            case Fault.AGAIN:
                first = await self._ask(request)
                self._compare(first, await self._ask(request))
                writer.write(first)

    def _compare(self, first: bytes, second: bytes) -> None:
        if said(first) != said(second):
            self.differing.append((first, second))

    async def _ask(self, request: bytes) -> bytes:
        """The whole reply."""
        address = urlsplit(self.server_url)
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        try:
            writer.write(request)
            return await reader.read()
        finally:
            await _hang_up(writer)

    async def _relay(self, request: bytes, client: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Byte by byte; a client that leaves is seen by the server."""
        address = urlsplit(self.server_url)
        reader, upstream = await asyncio.open_connection(address.hostname, address.port)
        left = asyncio.ensure_future(client.read())
        try:
            upstream.write(request)
            while not left.done():
                piece = asyncio.ensure_future(reader.read(65_536))
                await asyncio.wait({piece, left}, return_when=asyncio.FIRST_COMPLETED)
                if not piece.done() or not piece.result():
                    piece.cancel()
                    return
                writer.write(piece.result())
                await writer.drain()
        finally:
            left.cancel()
            await _hang_up(upstream)


async def _hang_up(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


async def _read(reader: asyncio.StreamReader) -> Attempt:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    pairs = (line.split(": ", 1) for line in head[1:] if line)
    headers = {name.lower(): value for name, value in pairs}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Attempt(head[0].split(" ")[1], headers, body)


def said(reply: bytes) -> tuple[set[str], str]:
    """Ids and text of a reply, however it was cut into chunks."""
    _, _, body = reply.partition(b"\r\n\r\n")
    ids, text = set[str](), ""
    for line in body.split(b"\n"):
        payload = line.strip().removeprefix(b"data: ")
        if not payload.startswith(b"{"):
            continue
        content: dict[str, Any] = json.loads(payload)
        ids.add(content["id"])
        for choice in content["choices"]:
            message = choice.get("message") or choice.get("delta") or {}
            text += choice.get("text") or message.get("content") or ""
    return ids, text
