"""The outermost layer of the app: every request gets an id, is measured, and is answered whatever happens.

Place in the flow: between the HTTP server and the routes. Plain ASGI, because a wrapper that buffers would end
streaming and one that makes tasks would cost more than most routes. It knows nothing of routes but their templates.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from swarm.errors import BadRequest
from swarm.gateway.http.errors import error_response, internal_error
from swarm.gateway.http.limits import InputLimits
from swarm.gateway.http.traffic import Traffic

logger = logging.getLogger(__name__)

CHUNK_TIMEOUT_S = 60.0
"""A reader that takes none of a stream for so long holds what the stream holds: a place in the engine, a watcher's."""

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
UNMATCHED = "unmatched"

_REQUEST_ID = re.compile(r"[\w.:-]{1,128}")
_REQUEST_ID_KEY = "swarm.request_id"


class SlowReader(Exception):
    """The caller does not read what it asked for."""


def request_id_of(scope: Scope) -> str:
    return scope[_REQUEST_ID_KEY]


class RequestMiddleware:
    """ASGI middleware. Echoes a sane `x-request-id` of the caller, or makes one."""

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
            logger.info("request %s: its caller stopped reading", request_id)
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
    """What has been sent of one answer. `status` is 0 until it has begun."""

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
    return f"req-{uuid.uuid4().hex}"


def _template(scope: Scope) -> str:
    return getattr(scope.get("route"), "path_format", UNMATCHED)
