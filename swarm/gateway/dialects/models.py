"""The routes that describe the served model."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel

from swarm.gateway.dialects.endpoint import check_model, opened
from swarm.gateway.http.openapi import errors
from swarm.gateway.http.routes import DirectRoute
from swarm.gateway.served import Served
from swarm.rollout.completion import ModelService


class ModelView(BaseModel):
    """The served model, in one shape that the clients of OpenAI and of Anthropic read.

    `context_length` is in tokens, for prompt and reply together.
    """

    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "swarm"
    context_length: int
    weight_version: int
    type: Literal["model"] = "model"
    display_name: str
    created_at: str = "1970-01-01T00:00:00Z"
    lifecycle: str = "active"
    max_input_tokens: int
    max_tokens: int


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelView]
    has_more: bool = False
    first_id: str
    last_id: str


def models_router(served: Served) -> APIRouter:
    """Return the router that describes the model. It needs the key of a running episode."""
    router = APIRouter(prefix="/v1", tags=["model"], route_class=DirectRoute)

    @router.get("/models", summary="The model of this episode, as a list", responses=errors(401, 409, 503))
    async def list_models(request: Request) -> ModelList:
        service, _ = opened(request, served)
        return ModelList(data=[_describe(service)], first_id=service.model_name, last_id=service.model_name)

    @router.get("/models/{model_id:path}", summary="The model of this episode", responses=errors(401, 404, 409, 503))
    async def get_model(model_id: str, request: Request) -> ModelView:
        service, _ = opened(request, served)
        check_model(model_id, service)
        return _describe(service)

    return router


def _describe(service: ModelService) -> ModelView:
    context_length = service.episodes.info.context_length
    return ModelView(
        id=service.model_name,
        display_name=service.model_name,
        context_length=context_length,
        max_input_tokens=context_length,
        max_tokens=context_length,
        weight_version=service.episodes.lifecycle.weights.version,
    )
