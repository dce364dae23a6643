"""The I/O under the calls of a client: HTTP, pauses and one background worker, for threads or for asyncio."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, suppress
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

import httpx

from swarm.client.connections import AsyncConnectionStack, ConnectionStack
from swarm.errors import ServerUnreachable

P = ParamSpec("P")
T = TypeVar("T")
Calls = TypeVar("Calls")

WORKER_NAME = "swarm heartbeat"
CLOSED = "the client was closed while a call waited for the server"


class BackgroundWorker(Protocol):
    """A coroutine that runs in the background, and can be woken from its pause."""

    @property
    def is_alive(self) -> bool: ...

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None: ...

    def wake(self) -> None: ...

    async def pause(self, seconds: float) -> bool:
        """Sleep in the worker itself; return whether `wake` has ended the sleep."""
        ...

    async def stop(self, limit_s: float) -> None:
        """End the worker, and wait for its end for at most `limit_s` seconds."""
        ...


class Io(Protocol):
    """The operations on which a client's calls wait. Sending raises httpx.TransportError.

    Requests go straight to the transport. httpx.Client would add cookies, redirects and authentication, which the API
    does not use, and a quarter of the cost of a call.

    A client's calls are coroutines, written once. Over `TaskIo` an event loop awaits them. Over `ThreadIo` they never
    suspend, so `run` carries one out in the thread that calls it, and `blocking` makes a method for threads of it.
    """

    @property
    def is_blocking(self) -> bool: ...

    @property
    def worker(self) -> BackgroundWorker: ...

    async def send(self, request: httpx.Request) -> httpx.Response:
        """Send a request; return the response with its body read."""
        ...

    def stream(self, request: httpx.Request) -> AbstractAsyncContextManager[httpx.Response]: ...

    def lines(self, response: httpx.Response) -> AsyncGenerator[str]: ...

    async def read(self, response: httpx.Response) -> None: ...

    async def sleep(self, seconds: float) -> None:
        """Sleep for so many seconds. Raises ServerUnreachable as soon as the client is closed."""
        ...

    async def close(self) -> None: ...


class TaskIo:
    """The I/O of the tasks of one event loop."""

    is_blocking = False

    def __init__(self, transport: httpx.AsyncBaseTransport | None) -> None:
        self._transport = transport or AsyncConnectionStack()
        self._closed = asyncio.Event()
        self.worker = TaskWorker()

    async def send(self, request: httpx.Request) -> httpx.Response:
        async with self.stream(request) as response:
            await response.aread()
            return response

    @asynccontextmanager
    async def stream(self, request: httpx.Request) -> AsyncGenerator[httpx.Response]:
        response = await self._transport.handle_async_request(request)
        response.request = request
        try:
            yield response
        finally:
            await response.aclose()

    async def lines(self, response: httpx.Response) -> AsyncGenerator[str]:
        async for line in response.aiter_lines():
            yield line

    async def read(self, response: httpx.Response) -> None:
        await response.aread()

    async def sleep(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closed.wait()
                raise ServerUnreachable(CLOSED)

    async def close(self) -> None:
        self._closed.set()
        await self._transport.aclose()


class ThreadIo:
    """The I/O of any number of threads. Its coroutines block and never suspend."""

    is_blocking = True

    def __init__(self, transport: httpx.BaseTransport | None) -> None:
        self._transport = transport or ConnectionStack()
        self._closed = threading.Event()
        self.worker = ThreadWorker()

    async def send(self, request: httpx.Request) -> httpx.Response:
        async with self.stream(request) as response:
            response.read()
            return response

    @asynccontextmanager
    async def stream(self, request: httpx.Request) -> AsyncGenerator[httpx.Response]:
        response = self._transport.handle_request(request)
        response.request = request
        try:
            yield response
        finally:
            response.close()

    async def lines(self, response: httpx.Response) -> AsyncGenerator[str]:
        for line in response.iter_lines():
            yield line

    async def read(self, response: httpx.Response) -> None:
        response.read()

    async def sleep(self, seconds: float) -> None:
        if self._closed.wait(seconds):
            raise ServerUnreachable(CLOSED)

    async def close(self) -> None:
        self._closed.set()
        self._transport.close()


class TaskWorker:
    """A worker that is a task of the running event loop."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()

    @property
    def is_alive(self) -> bool:
        return self._task is not None and not self._task.done()

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._task = asyncio.create_task(work(), name=WORKER_NAME)

    def wake(self) -> None:
        self._woken.set()

    async def pause(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            return False
        self._woken.clear()
        return True

    async def stop(self, limit_s: float) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=limit_s)


class ThreadWorker:
    """A worker that is a daemon thread."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._woken = threading.Event()

    @property
    def is_alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._thread = threading.Thread(target=lambda: run(work()), name=WORKER_NAME, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        self._woken.set()

    async def pause(self, seconds: float) -> bool:
        is_woken = self._woken.wait(seconds)
        if is_woken:
            self._woken.clear()
        return is_woken

    async def stop(self, limit_s: float) -> None:
        self.wake()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(limit_s)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Carry out a coroutine over ThreadIo in the calling thread, and return its result."""
    try:
        work.send(None)
    except StopIteration as finished:
        return finished.value
    raise AssertionError(f"{work} was suspended: over ThreadIo every call blocks")


class Blocking(Generic[Calls]):
    """The base of a class for threads, whose methods carry out the coroutines of its `calls`."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls


def blocking(
    method: Callable[Concatenate[Calls, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Blocking[Calls], P], T]:
    """Return the method for threads with the same arguments, result and errors as the coroutine `method`."""

    @wraps(method)
    def call(self: Blocking[Calls], *args: P.args, **kwargs: P.kwargs) -> T:
        return run(method(self.calls, *args, **kwargs))

    return call


def blocking_block(
    method: Callable[Concatenate[Calls, P], AbstractAsyncContextManager[T]],
) -> Callable[Concatenate[Blocking[Calls], P], AbstractContextManager[T]]:
    """Return the method whose result is for `with`, from one whose result is for `async with`."""

    @wraps(method)
    def call(self: Blocking[Calls], *args: P.args, **kwargs: P.kwargs) -> AbstractContextManager[T]:
        return _Block(method(self.calls, *args, **kwargs))

    return call


def blocking_iterator(
    method: Callable[Concatenate[Calls, P], AsyncGenerator[T]],
) -> Callable[Concatenate[Blocking[Calls], P], Generator[T]]:
    """Return the method whose result is for `for`, from one whose result is for `async for`."""

    @wraps(method)
    def call(self: Blocking[Calls], *args: P.args, **kwargs: P.kwargs) -> Generator[T]:
        items = method(self.calls, *args, **kwargs)
        try:
            while True:
                try:
                    item = run(items.__anext__())
                except StopAsyncIteration:
                    return
                yield item
        finally:
            run(items.aclose())

    return call


class _Block(AbstractContextManager[T]):
    def __init__(self, block: AbstractAsyncContextManager[T]) -> None:
        self._block = block

    def __enter__(self) -> T:
        return run(self._block.__aenter__())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return run(self._block.__aexit__(kind, error, trace))
