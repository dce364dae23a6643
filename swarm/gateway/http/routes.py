"""The route classes: they check the caller, parse the body, call the endpoint and render its answer as JSON."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar, cast

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import from_json
from starlette.types import ASGIApp, Receive, Scope, Send

from swarm.errors import BadRequest, Forbidden
from swarm.gateway.http.audit import AuditLog
from swarm.gateway.http.auth import COMMANDERS, Role, TokenGuard
from swarm.gateway.http.errors import bad_field, status_of
from swarm.gateway.http.openapi import errors
from swarm.schemas import API_PREFIX, LEASE_HEADER, RECEIPT_HEADER

Body = TypeVar("Body")

BODY_TIMEOUT_S = 30.0
"""The longest time for a body to arrive. Slower clients would occupy the server."""

MAX_FENCE_DIGITS = 18
_RECEIPT = RECEIPT_HEADER.encode()

# Text that may spell NaN or a number too large for a float. It is rare, so every value is checked only after a match.
_MAYBE_INFINITE = re.compile(rb"NaN|Infinity|\d[eE]\+?\d{3}|\d{300}")


async def until_left(receive: Receive) -> None:
    """Return once the client of a request has disconnected. The body must have been read before."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def read_object(request: Request, *, is_required: bool = True) -> dict[str, Any] | None:
    """Return the parsed body, or None if it is empty and not required.

    Raises BadRequest for a body that arrives too slowly, is not a JSON object or nests deeper than 200 levels. It
    raises the same for NaN, a number too large for a float, or half a surrogate pair.
    """
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            body = await request.body()
    except TimeoutError:
        raise BadRequest(f"the request body did not arrive within {BODY_TIMEOUT_S:.0f} s: send it again") from None
    if not body:
        if is_required:
            raise BadRequest("the request has no body: send a JSON object")
        return None
    try:
        value: Any = from_json(body)
    except ValueError as error:
        raise BadRequest(f"the body is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadRequest("the body must be a JSON object")
    content = cast(dict[str, Any], value)
    if _MAYBE_INFINITE.search(body):
        _refuse_infinite(content)
    return content


def parse_body(adapter: TypeAdapter[Body], data: object) -> Body:
    """Return the data as the adapter's type. Raises BadRequest that names the first invalid field."""
    try:
        return adapter.validate_python(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        raise bad_field(first["loc"], first["msg"]) from None


def _refuse_infinite(value: dict[str, Any]) -> None:
    pending: list[tuple[tuple[object, ...], Any]] = [((), value)]
    while pending:
        where, each = pending.pop()
        if isinstance(each, float) and not math.isfinite(each):
            raise bad_field(where, "must be a finite number")
        if isinstance(each, dict):
            pending.extend(((*where, key), inner) for key, inner in cast(dict[str, Any], each).items())
        elif isinstance(each, list):
            pending.extend(((*where, index), inner) for index, inner in enumerate(cast(list[Any], each)))


CALLER_LEFT = 499

Handler = Callable[[Request], Coroutine[Any, Any, Response]]

_ROLE_KEY = "swarm.role"


def role_of(request: Request) -> Role:
    """Return the caller's role, which the route stored when it let the request pass."""
    return request.scope[_ROLE_KEY]


class DirectRoute(APIRoute):
    """A route that calls its endpoint without FastAPI's parsing, unless it has a query.

    The endpoint gets the path parameters, the body and, if it declares one, the request.

    It uses pydantic alone, which takes a third of the time: the calls of episodes come hundreds of times per second.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if not self.dependant.query_params:
            self.app = _answer_plainly(self.get_route_handler())

    def get_route_handler(self) -> Handler:
        return super().get_route_handler() if self.dependant.query_params else _direct(self)


@dataclass(frozen=True, slots=True)
class Gate:
    """A factory of routers whose routes are open to certain roles.

    Calls that only a commander may make are audited. If such a call names a lease that is over, it is refused. A
    receipt that a call brings back is checked before the call is handled.
    """

    guard: TokenGuard
    audit: AuditLog
    check_lease: Callable[[int], None]
    check_receipt: Callable[[str], Awaitable[None]]

    def router(self, roles: frozenset[Role], tag: str, prefix: str = API_PREFIX) -> APIRouter:
        gate = self

        class GuardedRoute(DirectRoute):
            allowed = roles

            def get_route_handler(self) -> Handler:
                handle = super().get_route_handler()
                return gate.audited(roles, handle) if roles == COMMANDERS else gate.guarded(roles, handle)

        refusals = errors(400, 401, 403, 409) if roles == COMMANDERS else errors(400, 401, 403)
        return APIRouter(prefix=prefix, tags=[tag], route_class=GuardedRoute, responses=refusals)

    def guarded(self, roles: frozenset[Role], handle: Handler) -> Handler:
        async def check_and_handle(request: Request) -> Response:
            _require(self.guard.identify(request), roles, request)
            await self._check_receipt(request)
            return await handle(request)

        return check_and_handle

    def audited(self, roles: frozenset[Role], handle: Handler) -> Handler:
        async def check_handle_and_record(request: Request) -> Response:
            caller: Role | None = None
            try:
                caller = self.guard.identify(request)
                _require(caller, roles, request)
                if (fence := request.headers.get(LEASE_HEADER)) is not None:
                    self.check_lease(_read_fence(fence))
                await self._check_receipt(request)
                response = await handle(request)
            except BaseException as error:
                status = status_of(error) if isinstance(error, Exception) else CALLER_LEFT
                await self.audit.record(request, caller, status)
                raise
            await self.audit.record(request, caller, response.status_code)
            return response

        return check_handle_and_record

    async def _check_receipt(self, request: Request) -> None:
        for name, value in request.scope["headers"]:
            if name == _RECEIPT:
                await self.check_receipt(value.decode("latin-1"))


def _read_fence(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= MAX_FENCE_DIGITS):
        raise BadRequest(f"{LEASE_HEADER}: must be the `fence` of a lease, a whole number", param=LEASE_HEADER)
    return int(text)


def _require(caller: Role, roles: frozenset[Role], request: Request) -> None:
    if caller not in roles:
        raise Forbidden(f"a token of the role {caller} may not do this: use one of {' or '.join(sorted(roles))}")
    request.scope[_ROLE_KEY] = caller


def _answer_plainly(handle: Handler) -> ASGIApp:
    """Return the ASGI app of a handler, without FastAPI's layers for open files and dependencies."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        response = await handle(Request(scope, receive, send))
        await response(scope, receive, send)

    return app


@cache
def _adapter_of(annotation: type[Any]) -> TypeAdapter[Any]:
    """Return the adapter of a type.

    It is cached, as FastAPI asks a route for its handler twice and a process may serve several apps.
    """
    return TypeAdapter(annotation)


def _direct(route: APIRoute) -> Handler:
    endpoint = cast(Callable[..., Awaitable[BaseModel | Response]], route.endpoint)
    request_name = route.dependant.request_param_name
    parameters = route.dependant.body_params
    body_name = parameters[0].name if parameters else ""
    is_required = bool(parameters) and parameters[0].field_info.is_required()
    # FastAPI keeps the annotation as it was declared: here it is always a type.
    body = _adapter_of(cast(type[Any], parameters[0].field_info.annotation)) if parameters else None
    status = route.status_code or 200

    async def handle(request: Request) -> Response:
        arguments: dict[str, Any] = dict(request.path_params)
        if request_name is not None:
            arguments[request_name] = request
        if body is not None:
            arguments[body_name] = parse_body(body, await read_object(request, is_required=is_required))
        answer = await endpoint(**arguments)
        if isinstance(answer, Response):
            return answer
        return Response(answer.__pydantic_serializer__.to_json(answer), status, media_type="application/json")

    return handle
