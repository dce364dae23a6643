"""The route of OpenAI's older API: a prompt in, its continuation out.

Place in the flow: HTTP to the served model; the body's meaning is in request.py, how a call is answered in
endpoint.py.
"""

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
    "OpenAI's text completion, or with `stream` its chunks.", example="data: {...}\n\ndata: [DONE]\n\n"
)


def completions_router(served: Callable[[], ModelService | None]) -> APIRouter:
    """Open to the key of a running episode, for that episode."""
    router = APIRouter(prefix="/v1", tags=["model"], route_class=DirectRoute)
    endpoint = ModelEndpoint(served)

    @router.post(
        "/completions",
        summary="Continue a text",
        response_class=Response,
        responses=_RESPONSES,
    )
    async def completions(request: Request) -> Response:
        """The prompt goes to the model as it is: no template, no special tokens but those that it spells out. One that
        begins with an earlier prompt of the episode and all that was sampled from it keeps those very tokens."""
        return await endpoint.answer(request, COMPLETIONS)

    return router
