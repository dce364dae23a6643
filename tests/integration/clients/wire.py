"""The bytes between clients and a server under test, passed on as they are and kept.

Place in the flow: clients connect here instead of to the server. What went over a connection is read as HTTP only
afterwards, so that no client or server can tell that it was there.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import httptools

CHUNK_BYTES = 65_536
LIMIT_S = 60


@dataclass
class Message:
    """One request or response. Names of headers are in lower case; `target` is a request's method and path."""

    target: tuple[str, str] = ("", "")
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    is_complete: bool = False


@dataclass(frozen=True)
class Exchange:
    """A request and what it was answered with, whole or cut off."""

    request: Message
    response: Message

    @property
    def path(self) -> str:
        return self.request.target[1].partition("?")[0]

    @property
    def asked(self) -> dict[str, Any]:
        return json.loads(self.request.body)

    @property
    def is_streamed(self) -> bool:
        return self.response.headers.get("content-type", "").startswith("text/event-stream")

    @property
    def ignored_fields(self) -> set[str]:
        return set(filter(None, self.response.headers.get("x-ignored-fields", "").split(",")))

    def answered(self) -> list[dict[str, Any]]:
        """The JSON of the response's body, or of the events it is made of."""
        text = self.response.body.decode()
        if not self.is_streamed:
            return [json.loads(text)]
        data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
        return [json.loads(each) for each in data if each != "[DONE]"]


class Wire:
    """Listens on a free port of its own once it is opened, and passes connections on to `target`, a port."""

    def __init__(self) -> None:
        self.target = 0
        self._connections: list[tuple[bytearray, bytearray]] = []
        self._open: dict[asyncio.Task[None] | None, asyncio.StreamWriter] = {}
        self._server: asyncio.Server | None = None

    async def open(self) -> int:
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        return self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Ends all connections."""
        if self._server is not None:
            self._server.close()
        serving = [task for task in self._open if task is not None]
        for writer in self._open.values():
            writer.transport.abort()
        await asyncio.gather(*serving)

    def exchanges(self) -> list[Exchange]:
        """All so far; those of one connection in their order."""
        return [
            Exchange(request, response)
            for sent, received in list(self._connections)
            for request, response in zip(_read(bytes(sent), is_request=True), _read(bytes(received)), strict=False)
        ]

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open[asyncio.current_task()] = writer
        sent, received = bytearray(), bytearray()
        self._connections.append((sent, received))
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self.target)
        pumps = [
            asyncio.ensure_future(_pump(reader, server_writer, sent)),
            asyncio.ensure_future(_pump(server_reader, writer, received)),
        ]
        try:
            # Whoever hangs up ends the connection for both.
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            for end in (writer, server_writer):
                end.close()
            await asyncio.gather(writer.wait_closed(), server_writer.wait_closed(), *pumps, return_exceptions=True)
            del self._open[asyncio.current_task()]


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kept: bytearray) -> None:
    try:
        while data := await reader.read(CHUNK_BYTES):
            kept += data
            writer.write(data)
            async with asyncio.timeout(LIMIT_S):
                await writer.drain()
    except ConnectionError:
        return


class _Reader:
    """Callbacks of httptools' parsers."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.url = b""

    def on_message_begin(self) -> None:
        self.messages.append(Message())
        self.url = b""

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.messages[-1].headers[name.decode().lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self.messages[-1].body += body

    def on_message_complete(self) -> None:
        self.messages[-1].is_complete = True


class _RequestReader(_Reader):
    def on_headers_complete(self) -> None:
        self.messages[-1].target = (self.parser.get_method().decode(), self.url.decode())

    def read(self, data: bytes) -> list[Message]:
        self.parser = httptools.HttpRequestParser(self)
        self.parser.feed_data(data)
        return self.messages


class _ResponseReader(_Reader):
    def on_headers_complete(self) -> None:
        self.messages[-1].status = self.parser.get_status_code()

    def read(self, data: bytes) -> list[Message]:
        self.parser = httptools.HttpResponseParser(self)
        self.parser.feed_data(data)
        return self.messages


def _read(data: bytes, *, is_request: bool = False) -> list[Message]:
    return (_RequestReader() if is_request else _ResponseReader()).read(data)
