"""The routes of Anthropic's API: messages and token counts."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel

from swarm.errors import SwarmError
from swarm.gateway.dialects.anthropic.errors import anthropic_error_response
from swarm.gateway.dialects.anthropic.messages import RecordedReplies
from swarm.gateway.dialects.anthropic.reply import MessageStream, render_message
from swarm.gateway.dialects.anthropic.request import MessagesBody, parse_count_request, parse_message_request
from swarm.gateway.dialects.endpoint import RECORDED, Dialect, opened, report_ignored
from swarm.gateway.dialects.fields import CheckedCall
from swarm.gateway.http.errors import internal_error
from swarm.gateway.http.middleware import request_id_of
from swarm.gateway.http.openapi import model_responses
from swarm.gateway.http.routes import DirectRoute, Handler, read_object
from swarm.gateway.served import Served
from swarm.rollout.completion import ModelService
from swarm.rollout.episodes import RunningEpisode

logger = logging.getLogger(__name__)


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
        prompt = episode.tree.locate(
            where.messages, where.tools, service.codec, where.template_options, takes_place=False
        )
        return JSONResponse({"input_tokens": len(prompt.prompt_ids)}, headers=headers)

    return router
