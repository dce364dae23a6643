"""Request bodies: read within the limits of time and form, parsed strictly.

Place in the flow: used by every route that takes a body. Their size is bounded before, in middleware.py; what they mean
is known after.
"""

from __future__ import annotations

import asyncio
import math
import re
from typing import Any, TypeVar, cast

from fastapi import Request
from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from swarm.errors import BadRequest
from swarm.gateway.http.errors import bad_field

Body = TypeVar("Body")

BODY_TIMEOUT_S = 30.0
"""A client that takes longer to send a body keeps others from being served."""

# What may be no number or fit no float: rare, so that only then every value is looked at.
_MAYBE_INFINITE = re.compile(rb"NaN|Infinity|\d[eE]\+?\d{3}|\d{300}")


async def read_object(request: Request, *, is_required: bool = True) -> dict[str, Any] | None:
    """The parsed body; None for an empty one that is not required.

    Raises BadRequest for a body that comes too slowly, is no JSON object, nests deeper than 200 levels, or holds NaN,
    a number that no float holds, or half a surrogate pair.
    """
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            body = await request.body()
    except TimeoutError:
        raise BadRequest(f"the request body did not arrive within {BODY_TIMEOUT_S:.0f} s") from None
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


def parse_body(adapter: TypeAdapter[Body], data: dict[str, Any] | None) -> Body:
    """Raises BadRequest naming the first wrong field."""
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
