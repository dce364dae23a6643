"""Pure ASGI middleware: a request id on every response and a bound on every request body.

Place in the flow: outermost layer of the app. Written as plain ASGI because a wrapper that buffers would end streaming.
"""

from __future__ import annotations

import re
import uuid

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from swarm.errors import BadRequest
from swarm.gateway.errors import error_response

_REQUEST_ID = re.compile(r"[\w.:-]{1,128}")


class RequestIds:
    """Echoes a sane `x-request-id` of the caller, or makes one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
        request_id = given if _REQUEST_ID.fullmatch(given) else f"req-{uuid.uuid4().hex}"

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), (b"x-request-id", request_id.encode())]
            await send(message)

        await self._app(scope, receive, send_with_id)


class BodyLimit:
    """Refuses a body over `max_bytes`, by its declared length or as it arrives."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > self._max_bytes:
            await self._refuse(scope, receive, send)
            return
        received = 0

        async def receive_within_limit() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._max_bytes:
                raise BadRequest(f"the request body exceeds {self._max_bytes} bytes")
            return message

        await self._app(scope, receive_within_limit, send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = error_response(BadRequest(f"the request body exceeds {self._max_bytes} bytes"))
        await response(scope, receive, send)
