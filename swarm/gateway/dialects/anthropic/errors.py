"""Domain errors in the shape of Anthropic's API."""

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
"""The error detail that makes the tool runner of Anthropic's SDK send the whole conversation. By itself it asks for a
thread."""

_KINDS: tuple[tuple[type[SwarmError], int, str], ...] = (
    # Anthropic's clients always retry after 529, but may treat another 5xx as final.
    (Unavailable, 529, "overloaded_error"),
    (BadRequest, 400, INVALID_REQUEST),
    (Unauthorized, 401, "authentication_error"),
    (Forbidden, 403, "permission_error"),
    (NotFound, 404, "not_found_error"),
    (Conflict, 409, INVALID_REQUEST),
    (SwarmError, 500, "api_error"),
)


def anthropic_error(error: SwarmError, request_id: str | None = None) -> dict[str, Any]:
    """Return the body of an error response, which is also the data of an `error` event."""
    # Claude Code compacts the conversation when it reads these words.
    prefix = "prompt is too long: " if isinstance(error, ContextLengthExceeded) else ""
    detail: dict[str, Any] = {"type": _kind(error)[1], "message": prefix + error.message}
    if isinstance(error, UnknownParameter) and error.param == THREAD:
        detail["details"] = NO_THREADS
    return {"type": "error", "error": detail, "request_id": request_id}


def anthropic_error_response(error: SwarmError, request_id: str) -> JSONResponse:
    """Return the response for a domain error, with the headers by which clients decide whether to retry."""
    plain = error_response(error)
    headers = {name: plain.headers[name] for name in plain.headers if not name.startswith("content-")}
    return JSONResponse(anthropic_error(error, request_id), _kind(error)[0], headers)


def _kind(error: SwarmError) -> tuple[int, str]:
    return next((status, kind) for cls, status, kind in _KINDS if isinstance(error, cls))
