"""The route of an API with one text in and one text out."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import APIRouter, Request
from fastapi.responses import Response
from swarm.gateway.dialects.generate.reply import open_no_stream, render_generated_text
from swarm.gateway.dialects.generate.request import GENERATE_FIELDS, parse_generate_request

from swarm.gateway.dialects.endpoint import Dialect, ModelEndpoint
from swarm.gateway.http.routes import DirectRoute
from swarm.rollout.completion import ModelService

GENERATE = Dialect("generate", GENERATE_FIELDS, parse_generate_request, render_generated_text, open_no_stream)


def generate_router(served: Callable[[], ModelService | None]) -> APIRouter:
    router = APIRouter(prefix="/v1", tags=["model"], route_class=DirectRoute)
    endpoint = ModelEndpoint(served)

    @router.post("/generate", summary="Continue a text", response_class=Response)
    async def generate(request: Request) -> Response:
        """Continue a text."""
        return await endpoint.answer(request, GENERATE)

    return router
