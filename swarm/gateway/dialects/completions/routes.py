"""The route of OpenAI's older completions API, which continues a prompt."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import APIRouter, Request
from fastapi.responses import Response

from swarm.gateway.dialects.completions.reply import TextCompletionStream, render_text_completion
from swarm.gateway.dialects.completions.request import COMPLETION_FIELDS, parse_completion_request
from swarm.gateway.dialects.endpoint import Dialect, ModelEndpoint
from swarm.gateway.http.openapi import model_responses
from swarm.gateway.http.routes import DirectRoute
from swarm.rollout.completion import ModelService

COMPLETIONS = Dialect(
    "completions", COMPLETION_FIELDS, parse_completion_request, render_text_completion, TextCompletionStream
)

_RESPONSES = model_responses(
    "OpenAI's text completion. With `stream`, its chunks.", example="data: {...}\n\ndata: [DONE]\n\n"
)


def completions_router(served: Callable[[], ModelService | None]) -> APIRouter:
    """Return the router of the completions API. It needs the key of a running episode."""
    router = APIRouter(prefix="/v1", tags=["model"], route_class=DirectRoute)
    endpoint = ModelEndpoint(served)

    @router.post(
        "/completions",
        summary="Continue a text",
        response_class=Response,
        responses=_RESPONSES,
    )
    async def completions(request: Request) -> Response:
        """Continue a text. The model gets the prompt as it is.

        No chat template and no special tokens are added, except those that the prompt spells out. If the prompt extends
        an earlier turn of the episode (its prompt and completion), it keeps the tokens of that turn.
        """
        return await endpoint.answer(request, COMPLETIONS)

    return router
