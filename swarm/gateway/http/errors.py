"""Domain errors as HTTP responses: the one place that maps an error class to its status and its body."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from swarm.errors import (
    BadRequest,
    Conflict,
    EngineFailure,
    FailedEngine,
    Forbidden,
    LedgerError,
    NotFound,
    SwarmError,
    Unauthorized,
    Unavailable,
)
from swarm.schemas import ErrorBody, ErrorDetail

_STATUS_BY_CLASS: tuple[tuple[type[SwarmError], int, str], ...] = (
    (BadRequest, 400, "invalid_request_error"),
    (Unauthorized, 401, "authentication_error"),
    (Forbidden, 403, "permission_error"),
    (NotFound, 404, "not_found_error"),
    (Conflict, 409, "conflict_error"),
    (LedgerError, 507, "storage_error"),
    (Unavailable, 503, "unavailable_error"),
    (EngineFailure, 503, "engine_error"),
    (SwarmError, 500, "server_error"),
)

MAX_RETRY_AFTER_S = 120
"""The longest wait to ask for: the clients of OpenAI and Anthropic do not retry at all after a longer one."""


def status_of(error: BaseException) -> int:
    """Return the HTTP status of an error that a route raised."""
    if isinstance(error, RequestValidationError):
        return 400
    if isinstance(error, HTTPException):
        return error.status_code
    return next((status for cls, status, _ in _STATUS_BY_CLASS if isinstance(error, cls)), 500)


def bad_field(location: Sequence[object], message: str) -> BadRequest:
    """Return the error for a field that pydantic refused.

    `location` is the path to the field as pydantic gives it. The value is left out of the message, as it may be secret.
    """
    where = ".".join(str(part) for part in location if part not in {"body", "query", "path"})
    return BadRequest(f"{where or 'body'}: {message}", param=where or None)


def internal_error() -> SwarmError:
    """Return the error that a caller gets for an unexpected exception: it reveals nothing but where to look."""
    return SwarmError("internal error: see the server's log under this request id")


def error_response(error: SwarmError) -> JSONResponse:
    """Return the response for a domain error, with the headers by which clients decide whether to retry."""
    status, detail = status_of(error), detail_of(error)
    headers: dict[str, str] = {}
    if (seconds := retry_after_s(error)) is not None:
        headers["retry-after"] = str(seconds)
    elif isinstance(error, Conflict | FailedEngine):
        headers["x-should-retry"] = "false"
    elif isinstance(error, Unauthorized):
        headers["www-authenticate"] = "Bearer"
    return _json(status, detail, headers)


def detail_of(error: SwarmError) -> ErrorDetail:
    """Return the `error` object of the response body for a domain error."""
    kind = next(kind for cls, _, kind in _STATUS_BY_CLASS if isinstance(error, cls))
    return ErrorDetail(message=error.message, type=kind, param=error.param, code=error.code)


def retry_after_s(error: SwarmError) -> int | None:
    """Return the seconds to wait before the same request, or None if waiting does not help."""
    if not isinstance(error, Unavailable):
        return None
    return max(1, min(MAX_RETRY_AFTER_S, round(error.retry_after_s)))


def install_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(SwarmError)
    async def on_domain_error(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, SwarmError)
        return error_response(error)

    @app.exception_handler(RequestValidationError)
    async def on_invalid_body(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        return error_response(bad_field(first["loc"], first["msg"]))

    @app.exception_handler(HTTPException)
    async def on_http_error(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        if error.status_code == 404:
            return error_response(NotFound(f"no route {request.method} {request.scope['path']}: see /docs"))
        headers = dict(error.headers or {})
        detail = ErrorDetail(message=str(error.detail), type="invalid_request_error", code="bad_request")
        return _json(error.status_code, detail, headers)


def _json(status: int, detail: ErrorDetail, headers: dict[str, str]) -> JSONResponse:
    return JSONResponse(ErrorBody(error=detail).model_dump(), status_code=status, headers=headers)
