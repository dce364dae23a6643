"""The routes of Anthropic's API: messages, token counts, and models in Anthropic's shape."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel
from starlette.routing import Match
from starlette.types import Scope

from swarm.errors import SwarmError
from swarm.gateway.dialects.anthropic.errors import anthropic_error_response
from swarm.gateway.dialects.anthropic.messages import RecordedReplies
from swarm.gateway.dialects.anthropic.reply import MessageStream, render_message
from swarm.gateway.dialects.anthropic.request import MessagesBody, parse_count_request, parse_message_request
from swarm.gateway.dialects.endpoint import RECORDED, Dialect, Served, check_model, opened, report_ignored
from swarm.gateway.dialects.fields import CheckedCall
from swarm.gateway.http.errors import internal_error
from swarm.gateway.http.middleware import request_id_of
from swarm.gateway.http.openapi import model_responses
from swarm.gateway.http.routes import DirectRoute, Handler, read_object
from swarm.rollout.completion import ModelService
from swarm.rollout.episodes import RunningEpisode

logger = logging.getLogger(__name__)

VERSION_HEADER = b"anthropic-version"
"""The header that only the clients of Anthropic's API send, and all of them do."""


class AnthropicErrorDetail(BaseModel):
    type: str
    message: str


class AnthropicError(BaseModel):
    """The body of every error response of these routes."""

    type: Literal["error"]
    error: AnthropicErrorDetail
    request_id: str | None


class TokenCount(BaseModel):
    """The number of tokens of a prompt."""

    input_tokens: int


_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": AnthropicError, "description": description}
    for status, description in {
        400: "The request must change.",
        401: "The key is missing or wrong.",
        409: "The episode is over.",
        500: "The engine or the server failed: try again.",
        529: "Not now: try again after `Retry-After` seconds.",
    }.items()
}


class AnthropicRoute(DirectRoute):
    """A route whose answers have Anthropic's header `request-id`, and whose errors have Anthropic's shape."""

    def get_route_handler(self) -> Handler:
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            request_id = request_id_of(request.scope)
            try:
                response = await handle(request)
            except SwarmError as error:
                response = anthropic_error_response(error, request_id)
            except Exception:
                logger.exception("unexpected error in request %s to %s", request_id, self.path_format)
                response = anthropic_error_response(internal_error(), request_id)
            response.headers["request-id"] = request_id
            return response

        return answer


class _AnthropicClientsRoute(AnthropicRoute):
    """A route for Anthropic's clients only, as OpenAI's clients expect another shape at the same path."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if all(name != VERSION_HEADER for name, _ in scope["headers"]):
            return Match.NONE, {}
        return super().matches(scope)


def _parse(body: Mapping[str, Any], service: ModelService, episode: RunningEpisode) -> CheckedCall[MessagesBody]:
    replies = RecordedReplies(episode.tree.turns)
    return parse_message_request(body, service.defaults(episode), replies, service.codec.reads_option)


MESSAGES = Dialect(
    path="messages",
    summary="Sample a reply, in Anthropic's shape",
    description=f"Sample a reply. {RECORDED.format(status=529)}",
    responses={
        200: model_responses(
            "Anthropic's message. With `stream`, its events.",
            example='event: message_stop\ndata: {"type":"message_stop"}\n\n',
        )[200],
        **_ERRORS,
    },
    parse=_parse,
    render=render_message,
    open_stream=MessageStream,
    route_class=AnthropicRoute,
)


def count_router(served: Served) -> APIRouter:
    """Return the router of token counts. It needs the key of a running episode."""
    router = APIRouter(prefix="/v1", tags=["model"], route_class=AnthropicRoute)

    @router.post(
        "/messages/count_tokens",
        summary="Count the tokens of a prompt",
        responses={200: {"model": TokenCount}, **_ERRORS},
    )
    async def count_tokens(request: Request) -> Response:
        """Count the tokens of the prompt that the same messages would have now, with tokens of the episode's turns."""
        service, episode = opened(request, served)
        body = await read_object(request) or {}
        asked = parse_count_request(body, RecordedReplies(episode.tree.turns), service.codec.reads_option)
        headers = report_ignored(asked.model, asked.ignored_fields, service)
        episode.touch()
        where = asked.conversation
        prompt = episode.tree.preview(where.messages, where.tools, service.codec, where.template_options)
        return JSONResponse({"input_tokens": len(prompt.prompt_ids)}, headers=headers)

    return router


def anthropic_models_router(served: Served) -> APIRouter:
    """Return the router that describes the model. It must come before `models_router`, which has the same paths."""
    router = APIRouter(prefix="/v1", route_class=_AnthropicClientsRoute, include_in_schema=False)

    @router.get("/models")
    async def list_models(request: Request) -> Response:
        service, _ = opened(request, served)
        name = service.model_name
        return JSONResponse({"data": [_model(service)], "has_more": False, "first_id": name, "last_id": name})

    @router.get("/models/{model_id:path}")
    async def get_model(model_id: str, request: Request) -> Response:
        service, _ = opened(request, served)
        check_model(model_id, service)
        return JSONResponse(_model(service))

    return router


def _model(service: ModelService) -> dict[str, Any]:
    context_length = service.episodes.info.context_length
    return {
        "type": "model",
        "id": service.model_name,
        "display_name": service.model_name,
        "created_at": "1970-01-01T00:00:00Z",
        "lifecycle": "active",
        "max_input_tokens": context_length,
        "max_tokens": context_length,
    }
