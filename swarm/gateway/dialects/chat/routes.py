"""The routes of OpenAI's chat completions API, and of the list of models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel

from swarm.gateway.dialects.chat.reply import ChunkStream, render_completion
from swarm.gateway.dialects.chat.request import CHAT_FIELDS, parse_chat_request
from swarm.gateway.dialects.endpoint import Dialect, ModelEndpoint, check_model, opened
from swarm.gateway.http.openapi import errors, model_responses
from swarm.gateway.http.routes import DirectRoute
from swarm.rollout.completion import ModelService

CHAT = Dialect("chat/completions", CHAT_FIELDS, parse_chat_request, render_completion, ChunkStream)

_CHAT_RESPONSES = model_responses(
    "OpenAI's chat completion. With `stream`, its chunks.", example="data: {...}\n\ndata: [DONE]\n\n"
)


class ModelView(BaseModel):
    """The served model, in OpenAI's shape. `context_length` is in tokens, for prompt and reply together."""

    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "swarm"
    context_length: int
    weight_version: int


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelView]


def chat_router(served: Callable[[], ModelService | None]) -> APIRouter:
    """Return the router of chat completions. It needs the key of a running episode."""
    router = APIRouter(prefix="/v1", tags=["model"], route_class=DirectRoute)
    endpoint = ModelEndpoint(served)

    @router.post(
        "/chat/completions",
        summary="Sample a reply",
        response_class=Response,
        responses=_CHAT_RESPONSES,
    )
    async def chat_completions(request: Request) -> Response:
        """Sample a reply. Its turn is on record before the reply is complete.

        The call waits while weights change. If no token comes for too long, the answer is 503 with `Retry-After`.
        """
        return await endpoint.answer(request, CHAT)

    return router


def models_router(served: Callable[[], ModelService | None]) -> APIRouter:
    """Return the router that describes the model. It needs the key of a running episode."""
    router = APIRouter(prefix="/v1", tags=["model"], route_class=DirectRoute)

    @router.get("/models", summary="The model of this episode, as a list", responses=errors(401, 409, 503))
    async def list_models(request: Request) -> ModelList:
        service, _ = opened(request, served)
        return ModelList(data=[_describe(service)])

    @router.get("/models/{model_id:path}", summary="The model of this episode", responses=errors(401, 404, 409, 503))
    async def get_model(model_id: str, request: Request) -> ModelView:
        service, _ = opened(request, served)
        check_model(model_id, service)
        return _describe(service)

    return router


def _describe(service: ModelService) -> ModelView:
    return ModelView(
        id=service.model_name,
        context_length=service.episodes.info.context_length,
        weight_version=service.episodes.lifecycle.weights.version,
    )
