"""Model routes: chat/completions and models, as any OpenAI client expects them.

Place in the flow: HTTP to the served model; the body's meaning is in dialects/, the call itself in inference.py.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from swarm.errors import BadRequest, EngineNotReady, NotFound, SwarmError
from swarm.gateway.auth import bearer
from swarm.gateway.dialects.chat import parse_chat_request
from swarm.gateway.inference import ModelService
from swarm.gateway.rollout import RunningEpisode

CLIENT_CLOSED_REQUEST = 499
MODEL_ALIASES = frozenset({"default", ""})


def model_router(served: Callable[[], ModelService | None]) -> APIRouter:
    router = APIRouter(prefix="/v1", tags=["model"])

    def opened(request: Request) -> tuple[ModelService, RunningEpisode]:
        key = bearer(request)
        service = served()
        if service is None:
            raise EngineNotReady("no engine is running", retry_after_s=2)
        return service, service.rollout.authorize(key)

    @router.get("/models")
    async def list_models(request: Request) -> dict[str, Any]:
        service, _ = opened(request)
        return {"object": "list", "data": [_describe(service)]}

    @router.get("/models/{model_id:path}")
    async def get_model(model_id: str, request: Request) -> dict[str, Any]:
        service, _ = opened(request)
        _check_model(model_id, service)
        return _describe(service)

    @router.post("/chat/completions")
    async def chat_completions(request: Request) -> Response:
        service, episode = opened(request)
        chat = parse_chat_request(await _json_object(request), service.defaults())
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

    return router


async def _json_object(request: Request) -> dict[str, Any]:
    try:
        body = json.loads(await request.body())
    except (ValueError, RecursionError) as error:
        raise BadRequest("the body is not valid JSON") from error
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object")
    return body  # pyright: ignore[reportUnknownVariableType]


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


def _describe(service: ModelService) -> dict[str, Any]:
    return {
        "id": service.model_name,
        "object": "model",
        "created": 0,
        "owned_by": "swarm",
        "context_length": service.rollout.info.context_length,
        "weight_version": service.rollout.lifecycle.weights.version,
    }
