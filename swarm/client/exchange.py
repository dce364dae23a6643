"""One call of the server's API: its request, the parsing of its answer, and its retries."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from swarm.client.io import Io
from swarm.errors import BadRequest, ServerUnreachable, SwarmError, Unavailable, error_class
from swarm.schemas import RECEIPT_HEADER, ErrorBody, ErrorDetail
from swarm.spelling import UNKNOWN

logger = logging.getLogger(__name__)

T = TypeVar("T")
Answer = TypeVar("Answer", bound=BaseModel)

# A client notices a restarted server within this time, which is much shorter than a lease.
MAX_PAUSE_S = 5.0
FIRST_PAUSE_S = 0.25
# So the clients of a restarted server do not all call at once.
JITTER = 0.25

_REFUSED_FOR_NOW = frozenset({429, 502, 503, 504})
# Raised before a byte of the request is sent.
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)


@dataclass(slots=True)
class Server:
    """The address of a server, with the headers of every call.

    `receipt` is the newest one of an ended episode, which every call brings back. `timeout_s` limits one call with its
    retries. `is_known` becomes True with the first answer. If a server has never
    answered, a lost connection is an error at once, except for calls with a patience of their own. Otherwise the server
    has `timeout_s` to come back.
    """

    url: str
    headers: Mapping[str, str]
    timeout_s: float
    is_known: bool = False
    receipt: str | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the API.

    Refusals and lost connections are retried for `patience_s` seconds (None: the server's `timeout_s`). The server may
    take `answer_s` seconds longer than usual to answer. A `repeatable` call is sent again if it is not known whether it
    reached the server.
    """

    method: str
    path: str
    body: BaseModel | None = None
    query: Mapping[str, str | int] | None = None
    repeatable: bool = True
    patience_s: float | None = None
    answer_s: float = 0.0


async def exchange(io: Io, server: Server, call: Call, answer: type[Answer]) -> Answer:
    """Send `call`, retry it, and return the parsed answer.

    Raises the error that the answer names, or ServerUnreachable if no answer comes in time.

    Two failures are retried. The first is a temporary refusal: an Unavailable error, or a status of 429, 502, 503 or
    504 from a proxy, because the server has not taken the call. The second is a lost connection, if the call may be
    repeated or cannot have reached the server. An answer with `x-should-retry: false` is never retried. While a server
    restarts, the two follow each other.
    """
    patience = _Patience(server, call)
    while True:
        try:
            response = await io.send(_request(server, call))
        except httpx.TransportError as failure:
            pause_s = patience.after_loss(failure)
        else:
            server.is_known = True
            error = error_of(response)
            if error is None:
                return _parse(response, answer)
            pause_s = patience.after_refusal(error, is_final=response.headers.get("x-should-retry") == "false")
        await io.sleep(pause_s)


class _Patience:
    """The retries of one call: after a failed attempt it gives the pause before the next one, or raises the error."""

    def __init__(self, server: Server, call: Call) -> None:
        self._server = server
        self._call = call
        self._patience_s = server.timeout_s if call.patience_s is None else call.patience_s
        self._refused_until = time.monotonic() + self._patience_s
        self._lost_until: float | None = None
        self._pause_s = FIRST_PAUSE_S

    def after_refusal(self, error: SwarmError, *, is_final: bool) -> float:
        if self._lost_until is not None:
            # The server answers again, and only its boot is left, which ends soon.
            self._lost_until, self._pause_s = None, FIRST_PAUSE_S
        if not isinstance(error, Unavailable) or is_final:
            raise error
        return self._pause(error, error.retry_after_s, self._refused_until)

    def after_loss(self, failure: httpx.TransportError) -> float:
        error = unreachable(self._server, self._call.method, self._call.path, failure)
        if not (self._server.is_known or self._call.patience_s):
            raise error from failure
        if not (self._call.repeatable or isinstance(failure, _NOT_SENT)):
            raise error from failure
        if self._lost_until is None:
            # Counted from now, because the time of a hanging attempt is no absence of the server.
            self._lost_until = time.monotonic() + self._patience_s
        return self._pause(error, 0.0, self._lost_until)

    def _pause(self, error: SwarmError, at_least_s: float, until: float) -> float:
        left_s = until - time.monotonic()
        if left_s <= 0 or at_least_s > left_s:
            raise error
        if self._pause_s == FIRST_PAUSE_S:
            logger.info("%s %s is retried: %s", self._call.method, self._call.path, error.message)
        seconds = max(at_least_s, min(spread(self._pause_s), left_s))
        self._pause_s = min(2 * self._pause_s, MAX_PAUSE_S)
        return seconds


def spread(seconds: float) -> float:
    """Return `seconds` with random jitter of up to a quarter."""
    return seconds * random.uniform(1.0, 1.0 + JITTER)


def _request(server: Server, call: Call) -> httpx.Request:
    timeout = httpx.Timeout(server.timeout_s + call.answer_s, connect=min(10.0, server.timeout_s))
    # Without its unset fields, for which the server has its own defaults.
    body = None if call.body is None else call.body.model_dump(mode="json", exclude_unset=True)
    return httpx.Request(
        call.method,
        f"{server.url}{call.path}",
        params=call.query,
        headers={**server.headers, **({} if server.receipt is None else {RECEIPT_HEADER: server.receipt})},
        json=body,
        extensions={"timeout": timeout.as_dict()},
    )


def error_of(response: httpx.Response) -> SwarmError | None:
    """Return the error that a response names, or None for a success. The body must have been read."""
    if response.is_success:
        return None
    try:
        detail = ErrorBody.model_validate_json(response.content).error
    except ValidationError:
        message = (
            f"{response.request.url} answered HTTP {response.status_code} without a swarm error: check that a swarm"
            " server runs at this address"
        )
        detail = ErrorDetail(message=message, type="", code="")
    is_for_now = not detail.code and response.status_code in _REFUSED_FOR_NOW
    cls = Unavailable if is_for_now else error_class(detail.code)
    if issubclass(cls, Unavailable):
        return cls(detail.message, param=detail.param, retry_after_s=_retry_after_s(response))
    return cls(detail.message, param=detail.param)


def _retry_after_s(response: httpx.Response) -> float:
    try:
        return max(0.0, float(response.headers["retry-after"]))
    except (KeyError, ValueError):
        return 0.0


def _parse(response: httpx.Response, answer: type[Answer]) -> Answer:
    try:
        return answer.model_validate_json(response.content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise SwarmError(
            f"{response.request.url} sent an answer that this client cannot parse ({where}: {first['msg']}): check that"
            " client and server have the same version"
        ) from error


def unreachable(server: Server, method: str, path: str, failure: httpx.TransportError) -> ServerUnreachable:
    why = str(failure) or type(failure).__name__
    # Without a connection there may be no server; one that took the request is there.
    is_there = isinstance(failure, httpx.ReadTimeout | httpx.WriteTimeout | httpx.PoolTimeout)
    remedy = (
        "it is busy or hangs: try again"
        if is_there
        else ("start a server with `swarm start`, or give the address of one that runs")
    )
    return ServerUnreachable(f"no answer from {server.url} to {method} {path} ({why}): {remedy}")


def dump_any(value: Mapping[str, Any] | BaseModel) -> dict[str, Any]:
    """Return a mapping or a pydantic model as JSON data; defaults of a model are left out."""
    return value.model_dump(mode="json", exclude_defaults=True) if isinstance(value, BaseModel) else dict(value)


def checked(build: Callable[[], T]) -> T:
    """Return the request body that `build` makes. Raises BadRequest, which names the first wrong field."""
    try:
        body = build()
        if isinstance(body, BaseModel):
            body.model_dump_json()
        return body
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        got = "" if first["type"] == UNKNOWN else f" (got {first['input']!r})"
        raise BadRequest(f"{where}: {first['msg']}{got}", param=where) from error
    except ValueError as error:
        raise BadRequest(f"cannot be sent as JSON: {error}") from error
