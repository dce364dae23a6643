"""Domain errors to HTTP: the one place that knows which `code` is which status, and the shape of an error body.

Place in the flow: installed by app.py. Everything below raises SwarmError; nothing below knows a status.
"""

from __future__ import annotations

import logging

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from swarm.errors import (
    BadRequest,
    Conflict,
    EngineFailure,
    Forbidden,
    LedgerError,
    NotFound,
    SwarmError,
    Unauthorized,
    Unavailable,
)
from swarm.schemas import ErrorBody, ErrorDetail

logger = logging.getLogger(__name__)

_STATUS_BY_CLASS: tuple[tuple[type[SwarmError], int, str], ...] = (
    (BadRequest, 400, "invalid_request_error"),
    (Unauthorized, 401, "authentication_error"),
    (Forbidden, 403, "permission_error"),
    (NotFound, 404, "not_found_error"),
    (Conflict, 409, "conflict_error"),
    (Unavailable, 503, "unavailable_error"),
    (EngineFailure, 503, "engine_error"),
    (LedgerError, 507, "storage_error"),
    (SwarmError, 500, "server_error"),
)

MAX_RETRY_AFTER_S = 120
"""Stock clients do not retry at all when asked to wait longer."""


def error_response(error: SwarmError) -> JSONResponse:
    """The response for a domain error, with the headers that tell stock clients whether to try again."""
    status, kind = next((status, kind) for cls, status, kind in _STATUS_BY_CLASS if isinstance(error, cls))
    headers: dict[str, str] = {}
    if isinstance(error, Unavailable):
        headers["retry-after"] = str(max(1, min(MAX_RETRY_AFTER_S, round(error.retry_after_s))))
    elif isinstance(error, Conflict):
        headers["x-should-retry"] = "false"
    elif isinstance(error, Unauthorized):
        headers["www-authenticate"] = "Bearer"
    return _json(status, error.message, kind, error.code, error.param, headers)


def install_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(SwarmError)
    async def on_domain_error(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, SwarmError)
        return error_response(error)

    @app.exception_handler(RequestValidationError)
    async def on_invalid_body(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"] if part not in {"body", "query", "path"})
        return error_response(BadRequest(f"{where or 'body'}: {first['msg']}", param=where or None))

    @app.exception_handler(HTTPException)
    async def on_http_error(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        if error.status_code == 404:
            return error_response(NotFound(f"no route {request.method} {request.url.path}"))
        headers = dict(error.headers or {})
        return _json(error.status_code, str(error.detail), "invalid_request_error", "bad_request", None, headers)

    @app.exception_handler(Exception)
    async def on_bug(request: Request, error: Exception) -> JSONResponse:
        logger.error("unexpected error in %s %s", request.method, request.url.path, exc_info=error)
        return error_response(SwarmError("internal error: see the server's log under this request id"))


def _json(status: int, message: str, kind: str, code: str, param: str | None, headers: dict[str, str]) -> JSONResponse:
    body = ErrorBody(error=ErrorDetail(message=message, type=kind, param=param, code=code))
    return JSONResponse(body.model_dump(), status_code=status, headers=headers)
