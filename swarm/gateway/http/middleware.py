"""The outermost layer of the app: it gives every request an id, limits its size, measures it and always answers it."""

from __future__ import annotations

import asyncio
import logging
import random
import re
import time
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from swarm.errors import BadRequest
from swarm.gateway.http.errors import error_response, internal_error

BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
"""Upper bounds of the histogram's buckets, in seconds. A begin may wait for a minute, a model call for longer while
weights change."""


@dataclass(slots=True)
class Latencies:
    """The durations of one kind of request, as a histogram.

    `counts` has one entry per bucket and one for longer requests. The entries are not cumulative.
    """

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))
    total_s: float = 0.0

    def cumulative(self) -> Iterator[tuple[float, int]]:
        """Yield each upper bound with the number of requests within it, as Prometheus counts. The last is infinite."""
        count = 0
        for bound, within in zip((*BUCKETS_S, float("inf")), self.counts, strict=True):
            count += within
            yield bound, count


@dataclass(slots=True)
class Traffic:
    """The durations of all requests by method, route template and class of the answer.

    The class is "2xx" to "5xx", or "none" if the caller left before the answer began. Requests are counted by template,
    not by path, so that callers cannot make the number of entries grow.
    """

    latencies: dict[tuple[str, str, str], Latencies] = field(default_factory=dict[tuple[str, str, str], Latencies])

    def count(self, method: str, route: str, answer: str, seconds: float) -> None:
        key = (method, route, answer)
        latencies = self.latencies.get(key)
        if latencies is None:
            latencies = self.latencies[key] = Latencies()
        latencies.counts[bisect_left(BUCKETS_S, seconds)] += 1
        latencies.total_s += seconds


MAX_PATH_BYTES = 8192
"""The most bytes of path and query together. Ids and cursors of this server have less than 100."""

MAX_HEADERS = 100
MAX_HEADER_BYTES = 32_768
"""The most bytes of all header names and values together. The clients of OpenAI and Anthropic send less than 2,000."""


@dataclass(frozen=True, slots=True)
class InputLimits:
    """The limits on the size of a request."""

    max_body_bytes: int

    def check_head(self, scope: Scope) -> None:
        """Raise BadRequest if the path, the headers or the declared body length exceed a limit."""
        if len(scope["raw_path"]) + len(scope["query_string"]) > MAX_PATH_BYTES:
            raise BadRequest(f"path and query exceed {MAX_PATH_BYTES} bytes: shorten them")
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        if len(headers) > MAX_HEADERS:
            raise BadRequest(f"the request has more than {MAX_HEADERS} headers: send fewer")
        total = 0
        for name, value in headers:
            total += len(name) + len(value)
            if name == b"content-length" and value.isdigit() and int(value) > self.max_body_bytes:
                raise self._body_too_large()
        if total > MAX_HEADER_BYTES:
            raise BadRequest(f"the headers exceed {MAX_HEADER_BYTES} bytes: send fewer or shorter ones")

    def bound_body(self, receive: Receive) -> Receive:
        """Return `receive` with a limit: it raises BadRequest once the body exceeds the allowed bytes."""
        received = 0

        async def receive_within_limit() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self.max_body_bytes:
                raise self._body_too_large()
            return message

        return receive_within_limit

    def _body_too_large(self) -> BadRequest:
        return BadRequest(
            f"the request body exceeds {self.max_body_bytes} bytes: shorten it, or raise SWARM_MAX_BODY_BYTES"
            " of the server"
        )


logger = logging.getLogger(__name__)

CHUNK_TIMEOUT_S = 60.0
"""The longest that a caller may leave a chunk of a stream unread. An open stream occupies a place in the engine, or one
of the limited event streams."""

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
UNMATCHED = "unmatched"

_REQUEST_ID = re.compile(r"[\w.:-]{1,128}")
_REQUEST_ID_KEY = "swarm.request_id"


class SlowReader(Exception):
    """The signal that a caller stopped reading its stream."""


def request_id_of(scope: Scope) -> str:
    return scope[_REQUEST_ID_KEY]


class RequestMiddleware:
    """ASGI middleware for limits, request ids and measurements.

    A valid `x-request-id` of the caller is sent back with the answer. Otherwise the middleware makes one.

    It is plain ASGI: a wrapper that buffers would break streaming, and one that starts tasks costs more than most
    routes do. It must be used from one event loop.
    """

    def __init__(self, app: ASGIApp, limits: InputLimits, traffic: Traffic) -> None:
        self._app = app
        self._limits = limits
        self._traffic = traffic

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        request_id = scope[_REQUEST_ID_KEY] = _request_id(scope)
        answer = _Answer(send, (b"x-request-id", request_id.encode()))
        try:
            self._limits.check_head(scope)
            await self._app(scope, self._limits.bound_body(receive), answer.send)
        except BadRequest as error:
            await error_response(error)(scope, receive, answer.send)
        except SlowReader:
            logger.info("request %s ends: its caller stopped reading the answer", request_id)
        except Exception as error:
            if answer.status:
                raise
            logger.error("unexpected error in request %s to %s", request_id, _template(scope), exc_info=error)
            await error_response(internal_error())(scope, receive, answer.send)
        finally:
            method = scope["method"] if scope["method"] in METHODS else "other"
            kind = f"{answer.status // 100}xx" if answer.status else "none"
            self._traffic.count(method, _template(scope), kind, time.perf_counter() - began)


@dataclass(slots=True)
class _Answer:
    """One answer while it is sent. `status` is 0 until the first message is sent."""

    _send: Send
    _header: tuple[bytes, bytes]
    status: int = field(default=0, init=False)

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message.get("headers", ()), self._header]
        elif message.get("more_body"):
            try:
                async with asyncio.timeout(CHUNK_TIMEOUT_S):
                    await self._send(message)
            except TimeoutError:
                raise SlowReader from None
            return
        await self._send(message)


def _request_id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            given = value.decode("latin-1")
            if _REQUEST_ID.fullmatch(given):
                return given
    # Not a secret, only a name. Random bytes from `secrets` would cost a system call.
    return f"req-{random.getrandbits(128):032x}"


def _template(scope: Scope) -> str:
    return getattr(scope.get("route"), "path_format", UNMATCHED)
