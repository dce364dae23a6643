"""The OpenAPI description of the server at /openapi.json: errors, the roles that may call a route, and examples."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute

from swarm.errors import (
    BadRequest,
    EngineNotReady,
    EpisodeEnded,
    Forbidden,
    LedgerError,
    NotFound,
    SwarmError,
    Unauthorized,
)
from swarm.gateway.http.auth import COMMANDERS, Role
from swarm.gateway.http.errors import error_response
from swarm.schemas import LEASE_HEADER, RECEIPT_HEADER, ErrorBody

TOKEN = "token"
EPISODE_KEY = "episode_key"

_SECURITY_SCHEMES: dict[str, dict[str, str]] = {
    TOKEN: {
        "type": "http",
        "scheme": "bearer",
        "description": "The token of a role: commander, rollout or observer. A server without tokens needs none.",
    },
    EPISODE_KEY: {
        "type": "http",
        "scheme": "bearer",
        "description": "The `api_key` that episodes/begin returned. It opens the model routes of that episode only.",
    },
}

_ERRORS: dict[int, tuple[str, SwarmError]] = {
    400: ("The request must change.", BadRequest("limit: Input should be less than or equal to 1000", param="limit")),
    401: ("The token or key is missing or wrong.", Unauthorized("wrong token for the control API")),
    403: ("The role of the token does not allow this call.", Forbidden("a token of the role observer may not do this")),
    404: ("The server has no record of it.", NotFound("no episode 'ep-1' is on record", param="episode_id")),
    409: ("Final: the same call will never succeed.", EpisodeEnded("episode ep-1 is expired (idle_timeout)")),
    503: ("Not now: try again after `Retry-After` seconds.", EngineNotReady("no engine is running", retry_after_s=2)),
    507: ("The ledger cannot be written; nothing was stored.", LedgerError("the ledger cannot write (disk full)")),
}

IGNORED_FIELDS: dict[str, Any] = {
    "x-ignored-fields": {
        "description": "Fields without effect: unknown ones, and `model` if it does not name the served model.",
        "schema": {"type": "string"},
    }
}

_LEASE_PARAMETER: dict[str, Any] = {
    "name": LEASE_HEADER,
    "in": "header",
    "required": False,
    "description": "The fencing token of the caller's lease. If that lease is over, the call gets 409 `lease_lost`.",
    "schema": {"type": "integer", "minimum": 1, "maximum": 10**18 - 1},
}

_RECEIPT_PARAMETER: dict[str, Any] = {
    "name": RECEIPT_HEADER,
    "in": "header",
    "required": False,
    "description": "The newest `receipt` of an ended episode. It shows the server what it has acknowledged.",
    "schema": {"type": "string"},
}

_SCHEMAS = "#/components/schemas/"

_EPISODE_ID = "ep-0f3c5b0e6d5f4d0c9a51f5a3b7f1c2d4"

EXAMPLES: dict[str, Mapping[str, Any]] = {
    "BeginEpisodeRequest": {
        "episode_type": "train",
        "client_id": "laptop",
        "data_source": "math",
        "lease_s": 30,
        "idle_timeout_s": 240,
    },
    "EndEpisodeRequest": {"task_id": "math-17", "reward": 1.0, "is_success": True, "metadata": {"seconds": 3.5}},
    "AbortEpisodeRequest": {"reason": "tool_crashed"},
    "ReviseRewardRequest": {"reward": 0.0, "reason": "the judge was wrong"},
    "HeartbeatRequest": {"client_id": "laptop", "episode_ids": [_EPISODE_ID]},
    "AgreeRequest": {"client_id": "laptop"},
    "UpdateBatchPolicyRequest": {"batch_size": 32, "mixture": {"math": 0.7, "code": 0.3}},
    "SyncJobRequest": {"job": {"model": "nano", "batch_size": 16, "num_repeat": 8, "total_steps": 30}},
    "StartEngineRequest": {"resume": True},
    "LoadRequest": {"step": 10},
    "LaunchRequest": {"key": "study-1/lr=0.1/0/1", "job": {"model": "nano", "total_steps": 30}},
    "LeaseRequest": {"study_id": "study-1", "holder": "lab:4711:3", "host": "lab", "pid": 4711, "ttl_s": 60},
}
"""A valid request body for each schema name."""


def model_responses(description: str, *, example: str) -> dict[int | str, dict[str, Any]]:
    """Return the responses of a model route.

    An answer is a JSON object or a stream of events like `example`. An error has OpenAI's shape.
    """
    content = {"application/json": {"schema": {"type": "object"}}, **event_stream("event", "data", example=example)}
    answer = {"description": description, "headers": IGNORED_FIELDS, "content": content}
    return {200: answer, **errors(400, 401, 409, 503, 507)}


def event_stream(*fields: str, example: str) -> dict[str, Any]:
    """Return the `content` of a response that is a stream of server-sent events with these fields."""
    properties = {name: {"type": "string"} for name in fields}
    return {
        "text/event-stream": {
            "schema": {"type": "object", "properties": properties, "additionalProperties": False},
            "example": example,
        }
    }


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the `responses` of a route that may answer with these error statuses.

    The schema is a reference by name. With a model instead, FastAPI would build validators for each of about 250
    responses. That is half of a server's start time, and errors are not validated when they are sent.
    """
    return {status: _describe_error(status) for status in statuses}


class SwarmApi(FastAPI):
    """The FastAPI app with a complete OpenAPI description.

    `request_bodies` returns, by path, the bodies of the routes that read their own body. It is called when the
    description is first asked for.
    """

    def __init__(self, *, request_bodies: Callable[[], Mapping[str, dict[str, Any]]], **settings: Any) -> None:
        super().__init__(**settings)
        self._request_bodies = request_bodies

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            self.openapi_schema = self._complete(super().openapi())
        return self.openapi_schema

    def _complete(self, schema: dict[str, Any]) -> dict[str, Any]:
        schema["components"]["securitySchemes"] = _SECURITY_SCHEMES
        for route in self.routes:
            if isinstance(route, APIRoute) and route.include_in_schema:
                for method in route.methods or ():
                    operation = schema["paths"][route.path_format][method.lower()]
                    _complete_operation(operation, getattr(route, "allowed", None))
        for path, body in self._request_bodies().items():
            schema["paths"][path]["post"]["requestBody"] = body
        schemas = schema["components"]["schemas"]
        for unused in ("HTTPValidationError", "ValidationError"):
            schemas.pop(unused, None)
        error = ErrorBody.model_json_schema(mode="serialization", ref_template=f"{_SCHEMAS}{{model}}")
        schemas.update(error.pop("$defs"), ErrorBody=error)
        for name, example in EXAMPLES.items():
            schemas[name]["examples"] = [example]
        return schema


def _complete_operation(operation: dict[str, Any], allowed: frozenset[Role] | None) -> None:
    # FastAPI answers an invalid request with 422, this server with 400.
    operation["responses"].pop("422", None)
    if allowed is not None:
        roles = sorted(allowed)
        operation["security"] = [{TOKEN: []}]
        operation["x-roles"] = roles
        operation["description"] = f"{operation.get('description', '')}\n\nFor: {', '.join(roles)}.".strip()
        operation.setdefault("parameters", []).append(_RECEIPT_PARAMETER)
        if allowed == COMMANDERS:
            operation.setdefault("parameters", []).append(_LEASE_PARAMETER)
    elif "model" in operation.get("tags", ()):
        operation["security"] = [{EPISODE_KEY: []}]
    for parameter in operation.get("parameters", ()):
        if parameter["name"] == "episode_id":
            parameter["example"] = _EPISODE_ID


@cache
def _describe_error(status: int) -> dict[str, Any]:
    description, example = _ERRORS[status]
    response = error_response(example)
    headers = {
        name: {"description": text, "schema": {"type": "string"}}
        for name, text in (
            ("retry-after", "Seconds to wait before the same request."),
            ("x-should-retry", "`false`: the clients of OpenAI and Anthropic do not retry."),
            ("www-authenticate", "The scheme: Bearer."),
        )
        if name in response.headers
    }
    content = {"schema": {"$ref": f"{_SCHEMAS}ErrorBody"}, "example": json.loads(bytes(response.body))}
    return {"description": description, "headers": headers, "content": {"application/json": content}}
