"""The HTTP connection of the server: it limits the time and size of a request's head and joins writes of an answer."""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from swarm.errors import BadRequest
from swarm.gateway.http.errors import error_response

STATUS = b"HTTP/1.1 "
"""The first bytes of every answer."""

HEAD_TIMEOUT_S = 20.0
MAX_HEAD_BYTES = 65_536
"""The most bytes of a request line with its headers. It is above the limit of middleware.py, whose refusal has a
request id, so that only an absurd head is refused here."""


class JoinedHead(asyncio.Transport):
    """A transport that sends the head of an answer together with the first piece of its body.

    uvicorn writes the two one after the other. Each write is a system call, the most expensive part of a short answer.
    A head without a body is sent alone before the event loop waits again.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._transport = transport
        self._loop = loop
        self._head = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head + data)
        elif data[: len(STATUS)] == STATUS:
            self._head = bytes(data)
            self._loop.call_soon(self._flush)
        else:
            self._transport.write(data)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def abort(self) -> None:
        self._head = b""
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def _flush(self) -> None:
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head)


class GuardedConnection(HttpToolsProtocol):
    """A connection that closes if the request line and headers are late or too large."""

    _head_bytes = 0
    _is_in_head = True
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(JoinedHead(transport, self.loop))
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._on_slow_head)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._is_in_head or self.transport.is_closing():
            return
        self._head_bytes += len(data)
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(f"the request line and headers exceed {MAX_HEAD_BYTES} bytes")
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._on_slow_head)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_head, self._head_bytes = True, 0

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        self._stop_timer()
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(msg)

    def _on_slow_head(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            self._refuse(f"the request line and headers did not arrive within {HEAD_TIMEOUT_S:.0f} s")

    def _refuse(self, message: str) -> None:
        body = bytes(error_response(BadRequest(message)).body)
        self.transport.write(
            b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n"
            b"content-length: " + str(len(body)).encode() + b"\r\n\r\n" + body
        )
        self.transport.close()

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
