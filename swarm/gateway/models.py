"""Model routes: chat/completions and models, as any OpenAI client expects them.

Place in the flow: HTTP to the served model; the body's meaning is in dialects/, the call itself in inference.py.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import BaseModel

from swarm.errors import EngineNotReady, NotFound, SwarmError
from swarm.gateway.auth import bearer
from swarm.gateway.bodies import read_object
from swarm.gateway.dialects.chat import parse_chat_request
from swarm.gateway.inference import ModelService
from swarm.gateway.openapi import errors, event_stream
from swarm.gateway.rollout import RunningEpisode
from swarm.gateway.routes import DirectRoute

CLIENT_CLOSED_REQUEST = 499
MODEL_ALIASES = frozenset({"default", ""})

_CHAT_BODY: dict[str, Any] = {
    "description": "OpenAI's body. A documented parameter that cannot be honoured is refused by name; a field nobody"
    " knows is accepted and named in the response header `x-ignored-fields`.",
    "required": True,
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["model", "messages"],
                "properties": {
                    "model": {"type": "string", "description": "The job's model, or `default`."},
                    "messages": {"type": "array", "minItems": 1, "items": {"type": "object"}},
                    "stream": {"type": "boolean"},
                    "max_tokens": {"type": "integer", "minimum": 1},
                    "temperature": {"type": "number"},
                    "seed": {"type": "integer"},
                },
                "additionalProperties": True,
            },
            "example": {"model": "default", "messages": [{"role": "user", "content": "Reverse: ABC"}]},
        }
    },
}
_CHAT_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "OpenAI's completion, or with `stream` its chunks.",
        "headers": {"x-ignored-fields": {"description": "Fields nobody knows.", "schema": {"type": "string"}}},
        "content": {
            "application/json": {"schema": {"type": "object"}},
            **event_stream("event", "data", example="data: {...}\n\ndata: [DONE]\n\n"),
        },
    },
    **errors(400, 401, 404, 409, 503, 507),
}


class ModelView(BaseModel):
    """What this server serves, in OpenAI's shape; `context_length` in tokens, prompt and reply together."""

    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "swarm"
    context_length: int
    weight_version: int


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelView]


def model_router(served: Callable[[], ModelService | None]) -> APIRouter:
    """Open to the key of a running episode, for that episode."""
    router = APIRouter(prefix="/v1", tags=["model"], route_class=DirectRoute)

    def opened(request: Request) -> tuple[ModelService, RunningEpisode]:
        key = bearer(request)
        service = served()
        if service is None:
            raise EngineNotReady("no engine is running", retry_after_s=2)
        return service, service.rollout.authorize(key)

    @router.post(
        "/chat/completions",
        summary="Sample a reply",
        response_class=Response,
        responses=_CHAT_RESPONSES,
        openapi_extra={"requestBody": _CHAT_BODY},
    )
    async def chat_completions(request: Request) -> Response:
        """Held while weights change; 503 with `Retry-After` if no token comes for long. Its turn is on record before
        the reply is complete."""
        service, episode = opened(request)
        chat = parse_chat_request(await read_object(request) or {}, service.defaults())
        _check_model(chat.model, service)
        headers = {"x-ignored-fields": ",".join(chat.ignored_fields)} if chat.ignored_fields else {}
        if not chat.stream:
            body = await _unless_disconnected(request, service.complete(episode, chat))
            if body is None:
                return Response(status_code=CLIENT_CLOSED_REQUEST)
            return JSONResponse(body, headers=headers)
        chunks = service.stream(episode, chat)
        # The first chunk is awaited here, so that a refused request is an HTTP error and not a broken stream.
        first = await anext(chunks)
        headers["cache-control"] = "no-cache"
        return StreamingResponse(_server_sent(first, chunks), media_type="text/event-stream", headers=headers)

    @router.get("/models", summary="The model of this episode, as a list", responses=errors(401, 409, 503))
    async def list_models(request: Request) -> ModelList:
        service, _ = opened(request)
        return ModelList(data=[_describe(service)])

    @router.get("/models/{model_id:path}", summary="The model of this episode", responses=errors(401, 404, 409, 503))
    async def get_model(model_id: str, request: Request) -> ModelView:
        service, _ = opened(request)
        _check_model(model_id, service)
        return _describe(service)

    return router


async def _unless_disconnected(request: Request, work: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any] | None:
    """The result, or None as soon as the client is gone; sampling then stops."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        working.cancel()
        await asyncio.wait({working})
        return None
    finally:
        watching.cancel()
        working.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _server_sent(first: dict[str, Any], chunks: AsyncGenerator[dict[str, Any]]) -> AsyncGenerator[bytes]:
    try:
        yield _event(first)
        async for chunk in chunks:
            yield _event(chunk)
        yield b"data: [DONE]\n\n"
    except SwarmError as error:
        # The status line is gone: stock clients raise on an `error` event.
        yield _event({"error": {"message": error.message, "type": "server_error", "param": None, "code": error.code}})
    finally:
        await chunks.aclose()


def _event(chunk: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(chunk, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def _check_model(name: str, service: ModelService) -> None:
    if name not in MODEL_ALIASES and name != service.model_name:
        raise NotFound(f"no model {name!r} here: this server serves {service.model_name!r}", param="model")


def _describe(service: ModelService) -> ModelView:
    return ModelView(
        id=service.model_name,
        context_length=service.rollout.info.context_length,
        weight_version=service.rollout.lifecycle.weights.version,
    )
