"""The routes of OpenAI's Responses API: sample a response, and get or delete one of the same episode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal
from weakref import WeakKeyDictionary

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel

from swarm.errors import BadRequest, NotFound, UnknownParameter
from swarm.gateway.dialects.endpoint import RECORDED, Dialect, Served, model_router, opened
from swarm.gateway.dialects.fields import shown
from swarm.gateway.dialects.responses.items import RecordedResponses, ResponseId
from swarm.gateway.dialects.responses.reply import ResponseStream, render_response, show_response
from swarm.gateway.dialects.responses.request import (
    ENCRYPTED_REASONING,
    LOGPROBS,
    ResponseRequest,
    Shown,
    parse_response_request,
    recorded_settings,
)
from swarm.gateway.http.openapi import errors, model_responses
from swarm.rollout.completion import ModelService
from swarm.rollout.deduplication import CallHead, CallResult, Completion, EpisodeCalls
from swarm.rollout.episodes import RunningEpisode
from swarm.tracker.codec import Codec
from swarm.types import Turn

_JSON: dict[str, Any] = {"application/json": {"schema": {"type": "object"}}}
_INCLUDE: dict[str, Any] = {
    "name": "include[]",
    "in": "query",
    "required": False,
    "schema": {"type": "array", "items": {"type": "string"}},
    "description": f"`{LOGPROBS}`, `{ENCRYPTED_REASONING}`",
}


class DeletedResponse(BaseModel):
    """The answer to the deletion of a response, which can no longer be fetched or referred to."""

    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


@dataclass(slots=True)
class _Kept:
    """The data about one episode's responses by call id: what they show of requests, and ids of deleted responses."""

    shown: dict[str, Shown] = field(default_factory=dict[str, Shown])
    deleted: set[str] = field(default_factory=set[str])


class _Keeper:
    """The data about the responses of all running episodes. It must be used from one event loop."""

    def __init__(self) -> None:
        self._by_episode: WeakKeyDictionary[EpisodeCalls, _Kept] = WeakKeyDictionary()

    def of(self, episode: RunningEpisode) -> _Kept:
        return self._by_episode.setdefault(episode.calls, _Kept())


def responses_router(served: Served) -> APIRouter:
    """Return the router of the Responses API. It needs the key of a running episode."""
    keeper = _Keeper()
    router = model_router(served, _dialect(keeper))
    _add_stored_responses(router, served, keeper)
    return router


def _add_stored_responses(router: APIRouter, served: Served, keeper: _Keeper) -> None:
    @router.get(
        "/responses/{response_id}",
        summary="A stored response of this episode",
        response_class=Response,
        responses={200: {"description": "OpenAI's response.", "content": _JSON}, **errors(400, 401, 404, 409, 503)},
        openapi_extra={"parameters": [_INCLUDE]},
    )
    async def get_response(response_id: str, request: Request) -> Response:
        """Return a stored response of this episode.

        After a restart of the server, settings that are not part of the recorded turn are shown with their defaults.
        Every call is then one of a function with a qualified name.
        """
        service, episode = opened(request, served)
        kept = keeper.of(episode)
        include = _asked_to_include(request)
        named, turn = _found(response_id, episode, kept)
        episode.touch()
        seen = kept.shown.get(turn.call_id)
        if seen is None:
            seen = Shown(recorded_settings(turn, has_instructions=named.has_instructions))
        seen = replace(seen, logprobs=LOGPROBS in include, encrypted_reasoning=ENCRYPTED_REASONING in include)
        head = CallHead(turn.call_id, int(turn.started_at), service.model_name)
        return JSONResponse(show_response(seen, head, Completion(turn.choice, turn), service.codec))

    @router.delete(
        "/responses/{response_id}",
        summary="Delete a response of this episode",
        responses=errors(401, 404, 409, 503),
    )
    async def delete_response(response_id: str, request: Request) -> DeletedResponse:
        """Delete a response, so that it can no longer be fetched or referred to. Its turn is kept and trained."""
        _, episode = opened(request, served)
        kept = keeper.of(episode)
        _, turn = _found(response_id, episode, kept)
        episode.touch()
        kept.deleted.add(turn.call_id)
        return DeletedResponse(id=response_id)

    @router.post("/responses/{response_id}/cancel", include_in_schema=False)
    async def cancel_response(response_id: str, request: Request) -> Response:
        """Refuse to cancel a response. A client cancels one by closing its connection."""
        _, episode = opened(request, served)
        _found(response_id, episode, keeper.of(episode))
        raise BadRequest("only a background response can be cancelled: close the connection of this one instead")


def _dialect(keeper: _Keeper) -> Dialect[ResponseRequest]:
    """Return the dialect of the API, which keeps what the response of a request shows besides the reply."""

    def parse(body: Mapping[str, Any], service: ModelService, episode: RunningEpisode) -> ResponseRequest:
        kept = keeper.of(episode)
        recorded = RecordedResponses(episode.tree.turns, kept.deleted)
        asked = parse_response_request(body, service.defaults(episode), recorded, service.codec.reads_option)
        return replace(asked, keep=kept.shown.__setitem__)

    def render(asked: ResponseRequest, result: CallResult, codec: Codec) -> dict[str, Any]:
        asked.keep(result.head.call_id, asked.shown)
        return render_response(asked, result, codec)

    def open_stream(asked: ResponseRequest, head: CallHead, codec: Codec) -> ResponseStream:
        asked.keep(head.call_id, asked.shown)
        return ResponseStream(asked, head, codec)

    return Dialect(
        path="responses",
        summary="Sample a response",
        description=f"Sample a response. {RECORDED.format(status=503)}",
        responses=model_responses(
            "OpenAI's response. With `stream`, its events.",
            example='event: response.created\ndata: {"type":"response.created"}\n\n',
        ),
        parse=parse,
        render=render,
        open_stream=open_stream,
    )


def _asked_to_include(request: Request) -> list[str]:
    """Return the values of `include` in the query.

    Raises UnknownParameter if the query asks for a stream or for a part of the response.
    """
    query = request.query_params
    for name in ("stream", "starting_after"):
        if query.get(name, "false") != "false":
            raise UnknownParameter(
                f"{name} cannot be honoured, as a stored response is only sent whole: leave it out", param=name
            )
    return [value for name in ("include", "include[]") for value in query.getlist(name)]


def _found(response_id: str, episode: RunningEpisode, kept: _Kept) -> tuple[ResponseId, Turn]:
    found = RecordedResponses(episode.tree.turns, kept.deleted).find(response_id)
    if found is None:
        raise NotFound(f"no stored response {shown(response_id)} in this episode", param="response_id")
    return found
