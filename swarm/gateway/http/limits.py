"""What a request may measure before anybody looks at what it says.

Place in the flow: asked by middleware.py for every request. It reads nothing but the head, and counts the body as it
comes.
"""

from __future__ import annotations

from dataclasses import dataclass

from starlette.types import Message, Receive, Scope

from swarm.errors import BadRequest

MAX_PATH_BYTES = 8192
"""Path and query together; ids and cursors of this server have less than 100."""

MAX_HEADERS = 100
MAX_HEADER_BYTES = 32_768
"""Names and values together. Stock clients send less than 2,000."""


@dataclass(frozen=True, slots=True)
class InputLimits:
    max_body_bytes: int

    def check_head(self, scope: Scope) -> None:
        """Raises BadRequest naming the limit that the request line, the headers or the declared body exceed."""
        if len(scope["raw_path"]) + len(scope["query_string"]) > MAX_PATH_BYTES:
            raise BadRequest(f"path and query exceed {MAX_PATH_BYTES} bytes")
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        if len(headers) > MAX_HEADERS:
            raise BadRequest(f"the request has more than {MAX_HEADERS} headers")
        total = 0
        for name, value in headers:
            total += len(name) + len(value)
            if name == b"content-length" and value.isdigit() and int(value) > self.max_body_bytes:
                raise self._body_too_large()
        if total > MAX_HEADER_BYTES:
            raise BadRequest(f"the headers exceed {MAX_HEADER_BYTES} bytes")

    def bound_body(self, receive: Receive) -> Receive:
        """`receive`, which then raises BadRequest once more than the allowed bytes have come."""
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
        return BadRequest(f"the request body exceeds {self.max_body_bytes} bytes")
