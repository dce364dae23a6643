"""Domain errors as clients of Anthropic's API expect them.

Place in the flow: used by the messages routes and by the stream of a reply. It knows nothing of requests.
"""

from __future__ import annotations

from typing import Any

from fastapi.responses import JSONResponse

from swarm.errors import (
    BadRequest,
    Conflict,
    ContextLengthExceeded,
    Forbidden,
    NotFound,
    SwarmError,
    Unauthorized,
    Unavailable,
    UnknownParameter,
)
from swarm.gateway.http.errors import error_response

INVALID_REQUEST = "invalid_request_error"

THREAD = "thread"
NO_THREADS = {"error_code": "thread_unsupported_request"}
"""By this the SDK's tool runner, which asks for a thread of itself, knows that it has to send the conversation."""

_KINDS: tuple[tuple[type[SwarmError], int, str], ...] = (
    # Anthropic's clients wait and send again for 529, also where they take another 5xx for a fault.
    (Unavailable, 529, "overloaded_error"),
    (BadRequest, 400, INVALID_REQUEST),
    (Unauthorized, 401, "authentication_error"),
    (Forbidden, 403, "permission_error"),
    (NotFound, 404, "not_found_error"),
    (Conflict, 409, INVALID_REQUEST),
    (SwarmError, 500, "api_error"),
)


def anthropic_error(error: SwarmError, request_id: str | None = None) -> dict[str, Any]:
    """The body of an error, or the data of an `error` event."""
    # Words by which Claude Code knows that it has to compact the conversation.
    prefix = "prompt is too long: " if isinstance(error, ContextLengthExceeded) else ""
    detail: dict[str, Any] = {"type": _kind(error)[1], "message": prefix + error.message}
    if isinstance(error, UnknownParameter) and error.param == THREAD:
        detail["details"] = NO_THREADS
    return {"type": "error", "error": detail, "request_id": request_id}


def anthropic_error_response(error: SwarmError, request_id: str) -> JSONResponse:
    """With the headers that tell clients whether to try again."""
    plain = error_response(error)
    headers = {name: plain.headers[name] for name in plain.headers if not name.startswith("content-")}
    return JSONResponse(anthropic_error(error, request_id), _kind(error)[0], headers)


def _kind(error: SwarmError) -> tuple[int, str]:
    return next((status, kind) for cls, status, kind in _KINDS if isinstance(error, cls))
