"""Keep-alive connections for many threads or tasks, at a constant cost per request."""

from __future__ import annotations

import ssl
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Generic, TypeVar

import httpx

_ONE = httpx.Limits(max_connections=1, max_keepalive_connections=1)

Transport = TypeVar("Transport")
Origin = tuple[str, str, int | None]


class _Stack(Generic[Transport]):
    """The idle transports, by origin, the most recently used on top; each has one connection.

    Safe to use from threads.

    The pool of httpx looks at every connection on every request. With some dozens of episodes at once, this takes most
    of a client's time. Here a request takes an idle connection from the top.
    """

    def __init__(self, connect: Callable[[ssl.SSLContext | bool], Transport]) -> None:
        self._connect = connect
        self._idle: dict[Origin, deque[Transport]] = {}
        self.is_closed = False
        self._tls: ssl.SSLContext | None = None

    def take(self, url: httpx.URL) -> tuple[Origin, Transport]:
        origin = (url.scheme, url.host, url.port)
        try:
            return origin, self._idle.setdefault(origin, deque()).pop()
        except IndexError:
            return origin, self._connect(self._verification(url.scheme))

    def give_back(self, origin: Origin, transport: Transport) -> None:
        """Return an idle transport to the stack. If the stack is closed, the caller drains it afterwards."""
        self._idle[origin].append(transport)

    def drain(self) -> Iterator[Transport]:
        for stack in list(self._idle.values()):
            while stack:
                yield stack.pop()

    def _verification(self, scheme: str) -> ssl.SSLContext | bool:
        """Return the TLS context. It is built once, and only for https, because that takes a tenth of a second."""
        if scheme != "https":
            return False
        if self._tls is None:
            self._tls = httpx.create_ssl_context()
        return self._tls


class ConnectionStack(httpx.BaseTransport):
    """A transport for `httpx.Client(transport=ConnectionStack())`, for any number of threads."""

    def __init__(self) -> None:
        self._stack = _Stack(lambda verify: httpx.HTTPTransport(verify=verify, limits=_ONE))

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        origin, transport = self._stack.take(request.url)
        try:
            response = transport.handle_request(request)
        except BaseException:
            transport.close()
            raise
        assert isinstance(response.stream, httpx.SyncByteStream)
        response.stream = _Returning(response.stream, lambda: self._give_back(origin, transport), transport.close)
        return response

    def close(self) -> None:
        """Close the idle connections now, and each busy one when its request is done."""
        self._stack.is_closed = True
        for transport in self._stack.drain():
            transport.close()

    def _give_back(self, origin: Origin, transport: httpx.HTTPTransport) -> None:
        self._stack.give_back(origin, transport)
        if self._stack.is_closed:
            self.close()


class AsyncConnectionStack(httpx.AsyncBaseTransport):
    """A transport for `httpx.AsyncClient(transport=AsyncConnectionStack())`, for the tasks of one event loop."""

    def __init__(self) -> None:
        self._stack = _Stack(lambda verify: httpx.AsyncHTTPTransport(verify=verify, limits=_ONE))

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        origin, transport = self._stack.take(request.url)
        try:
            response = await transport.handle_async_request(request)
        except BaseException:
            await transport.aclose()
            raise
        assert isinstance(response.stream, httpx.AsyncByteStream)
        response.stream = _AsyncReturning(response.stream, lambda: self._give_back(origin, transport), transport.aclose)
        return response

    async def aclose(self) -> None:
        """Close the idle connections now, and each busy one when its request is done."""
        self._stack.is_closed = True
        for transport in self._stack.drain():
            await transport.aclose()

    async def _give_back(self, origin: Origin, transport: httpx.AsyncHTTPTransport) -> None:
        self._stack.give_back(origin, transport)
        if self._stack.is_closed:
            await self.aclose()


class _Returning(httpx.SyncByteStream):
    """A response body that returns its connection to the stack when it is closed.

    If closing the body fails, the connection is closed instead.
    """

    def __init__(self, body: httpx.SyncByteStream, give_back: Callable[[], None], give_up: Callable[[], None]) -> None:
        self._body = body
        self._give_back: Callable[[], None] | None = give_back
        self._give_up = give_up

    def __iter__(self) -> Iterator[bytes]:
        yield from self._body

    def close(self) -> None:
        give_back, self._give_back = self._give_back, None
        try:
            self._body.close()
        except BaseException:
            self._give_up()
            raise
        if give_back is not None:
            give_back()


class _AsyncReturning(httpx.AsyncByteStream):
    """The body of an answer for tasks, which gives its connection back. A cancelled close counts as a failed one."""

    def __init__(
        self,
        body: httpx.AsyncByteStream,
        give_back: Callable[[], Awaitable[None]],
        give_up: Callable[[], Awaitable[None]],
    ) -> None:
        self._body = body
        self._give_back: Callable[[], Awaitable[None]] | None = give_back
        self._give_up = give_up

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._body:
            yield piece

    async def aclose(self) -> None:
        give_back, self._give_back = self._give_back, None
        try:
            await self._body.aclose()
        except BaseException:
            await self._give_up()
            raise
        if give_back is not None:
            await give_back()
