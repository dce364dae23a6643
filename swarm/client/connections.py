"""Keep-alive connections for many threads or tasks, at a constant cost per request."""

from __future__ import annotations

import ssl
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from socket import socket as Socket
from typing import Any, Generic, TypeVar, cast

import httpcore
import httpx

KEEP_ALIVE_S = 5.0
"""The time after which an idle connection is not used again."""
MAX_HELD_BYTES = 65_536

Connection = TypeVar("Connection", httpcore.HTTPConnection, httpcore.AsyncHTTPConnection)
Origin = tuple[bytes, bytes, int | None]


class _Stack(Generic[Connection]):
    """The idle connections, by origin, the most recently used on top.

    Safe to use from threads.

    The pool of httpx looks at every connection on every request. With some dozens of episodes at once, this takes most
    of a client's time. Here a request takes an idle connection from the top.
    """

    def __init__(self, connect: Callable[[httpcore.Origin, ssl.SSLContext | None], Connection]) -> None:
        self._connect = connect
        self._idle: dict[Origin, deque[Connection]] = {}
        self.is_closed = False
        self._tls: ssl.SSLContext | None = None

    def take(self, url: httpcore.URL) -> tuple[Origin, Connection]:
        """Return a connection to the origin of `url`. One from the stack may have expired."""
        origin = (url.scheme, url.host, url.port)
        try:
            return origin, self._idle.setdefault(origin, deque()).pop()
        except IndexError:
            return origin, self._connect(url.origin, self._tls_of(url.scheme))

    def give_back(self, origin: Origin, connection: Connection) -> None:
        """Return an idle connection to the stack. If the stack is closed, the caller drains it afterwards."""
        self._idle[origin].append(connection)

    def drain(self) -> Iterator[Connection]:
        for stack in list(self._idle.values()):
            while stack:
                yield stack.pop()

    def _tls_of(self, scheme: bytes) -> ssl.SSLContext | None:
        """Return the TLS context. It is built once, and only for https, because that takes a tenth of a second."""
        if scheme != b"https":
            return None
        if self._tls is None:
            self._tls = httpx.create_ssl_context()
        return self._tls


class ConnectionStack(httpx.BaseTransport):
    """A transport for `httpx.Client(transport=ConnectionStack())`, for any number of threads."""

    def __init__(self) -> None:
        backend = _Sockets()
        self._stack = _Stack(
            lambda origin, tls: httpcore.HTTPConnection(origin, tls, KEEP_ALIVE_S, network_backend=backend)
        )

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        sent = _core_request(request)
        origin, connection = self._stack.take(sent.url)
        while connection.is_closed() or connection.has_expired():
            connection.close()
            origin, connection = self._stack.take(sent.url)
        try:
            with _httpx_errors():
                answer = connection.handle_request(sent)
        except BaseException:
            connection.close()
            raise
        body = _Body(answer, lambda: self._give_back(origin, connection), connection.close)
        return _httpx_response(answer, body)

    def close(self) -> None:
        """Close the idle connections now, and each busy one when its request is done."""
        self._stack.is_closed = True
        for connection in self._stack.drain():
            connection.close()

    def _give_back(self, origin: Origin, connection: httpcore.HTTPConnection) -> None:
        self._stack.give_back(origin, connection)
        if self._stack.is_closed:
            self.close()


class AsyncConnectionStack(httpx.AsyncBaseTransport):
    """A transport for `httpx.AsyncClient(transport=AsyncConnectionStack())`, for the tasks of one event loop."""

    def __init__(self) -> None:
        self._stack = _Stack(lambda origin, tls: httpcore.AsyncHTTPConnection(origin, tls, KEEP_ALIVE_S))

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        sent = _core_request(request)
        origin, connection = self._stack.take(sent.url)
        while connection.is_closed() or connection.has_expired():
            await connection.aclose()
            origin, connection = self._stack.take(sent.url)
        try:
            with _httpx_errors():
                answer = await connection.handle_async_request(sent)
        except BaseException:
            await connection.aclose()
            raise
        body = _AsyncBody(answer, lambda: self._give_back(origin, connection), connection.aclose)
        return _httpx_response(answer, body)

    async def aclose(self) -> None:
        """Close the idle connections now, and each busy one when its request is done."""
        self._stack.is_closed = True
        for connection in self._stack.drain():
            await connection.aclose()

    async def _give_back(self, origin: Origin, connection: httpcore.AsyncHTTPConnection) -> None:
        self._stack.give_back(origin, connection)
        if self._stack.is_closed:
            await self.aclose()


class _Body(httpx.SyncByteStream):
    """A response body that returns its connection to the stack when it is closed.

    If closing the body fails, the connection is closed instead.
    """

    def __init__(self, answer: httpcore.Response, give_back: Callable[[], None], give_up: Callable[[], None]) -> None:
        self._answer = answer
        self._give_back: Callable[[], None] | None = give_back
        self._give_up = give_up

    def __iter__(self) -> Iterator[bytes]:
        with _httpx_errors():
            yield from self._answer.iter_stream()

    def close(self) -> None:
        give_back, self._give_back = self._give_back, None
        try:
            self._answer.close()
        except BaseException:
            self._give_up()
            raise
        if give_back is not None:
            give_back()


class _AsyncBody(httpx.AsyncByteStream):
    """The body of an answer for tasks, which gives its connection back. A cancelled close counts as a failed one."""

    def __init__(
        self,
        answer: httpcore.Response,
        give_back: Callable[[], Awaitable[None]],
        give_up: Callable[[], Awaitable[None]],
    ) -> None:
        self._answer = answer
        self._give_back: Callable[[], Awaitable[None]] | None = give_back
        self._give_up = give_up

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _httpx_errors():
            async for piece in self._answer.aiter_stream():
                yield piece

    async def aclose(self) -> None:
        give_back, self._give_back = self._give_back, None
        try:
            await self._answer.aclose()
        except BaseException:
            await self._give_up()
            raise
        if give_back is not None:
            await give_back()


def _core_request(request: httpx.Request) -> httpcore.Request:
    url = request.url
    return httpcore.Request(
        request.method,
        httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
        headers=request.headers.raw,
        content=request.stream,
        extensions=request.extensions,
    )


def _httpx_response(answer: httpcore.Response, body: httpx.SyncByteStream | httpx.AsyncByteStream) -> httpx.Response:
    # httpcore declares its extensions as a dict without types.
    extensions = cast(Any, answer).extensions
    return httpx.Response(answer.status, headers=answer.headers, stream=body, extensions=extensions)


@contextmanager
def _httpx_errors() -> Generator[None]:
    """Raise an error of httpcore as the error of httpx with the same name."""
    try:
        yield
    except (
        httpcore.TimeoutException,
        httpcore.NetworkError,
        httpcore.ProtocolError,
        httpcore.UnsupportedProtocol,
    ) as error:
        raise getattr(httpx, type(error).__name__)(str(error)) from error


class _Sockets(httpcore.SyncBackend):
    """The network of a ConnectionStack: TCP connections with few system calls.

    At every system call a thread gives up the interpreter's lock, and with dozens of threads it then waits for the
    lock. The streams of httpcore make eleven for a request and its answer, these make five.
    """

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        return _JoinedWrites(super().connect_tcp(host, port, timeout, local_address, socket_options))


class _JoinedWrites(httpcore.NetworkStream):
    """A TCP stream that sends what is written before the next read in one piece: a request with its body.

    It sets the timeout of its socket only if it changes.
    """

    def __init__(self, stream: httpcore.NetworkStream) -> None:
        self._stream = stream
        self._socket: Socket = stream.get_extra_info("socket")
        self._held = bytearray()
        self._write_timeout: float | None = None

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._held += buffer
        self._write_timeout = timeout
        if len(self._held) > MAX_HELD_BYTES:
            self._send()

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        if self._held:
            # A server may answer, and close the connection, before it has read the whole request.
            with suppress(httpcore.WriteError):
                self._send()
        try:
            self._limit(timeout)
            return self._socket.recv(max_bytes)
        except TimeoutError as error:
            raise httpcore.ReadTimeout(error) from error
        except OSError as error:
            raise httpcore.ReadError(error) from error

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        return _JoinedWrites(self._stream.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)

    def _send(self) -> None:
        held, self._held = self._held, bytearray()
        try:
            self._limit(self._write_timeout)
            self._socket.sendall(held)
        except TimeoutError as error:
            raise httpcore.WriteTimeout(error) from error
        except OSError as error:
            raise httpcore.WriteError(error) from error

    def _limit(self, timeout: float | None) -> None:
        if timeout != self._socket.gettimeout():
            self._socket.settimeout(timeout)
