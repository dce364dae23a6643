"""The endpoint that answers model calls of every API: with one body, or with server-sent events as tokens arrive."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse
from pydantic_core import to_json

from swarm.errors import EngineFailure, NotFound, SwarmError
from swarm.gateway.dialects.fields import shown
from swarm.gateway.dialects.keep_alive import answer_whole, interval_asked, unless_disconnected
from swarm.gateway.http.auth import bearer
from swarm.gateway.http.routes import DirectRoute, read_object
from swarm.gateway.served import Served
from swarm.rollout.completion import ModelService
from swarm.rollout.deduplication import CallEvent, CallHead, CallIdentity, CallResult, NameKind, call_name
from swarm.rollout.episodes import RunningEpisode
from swarm.rollout.model_request import ModelRequest
from swarm.tracker.codec import Codec


@dataclass(frozen=True, slots=True)
class SseEvent:
    """One server-sent event. `data` is JSON or plain text; `event` is its name, in APIs that name events."""

    data: Mapping[str, Any] | str
    event: str | None = None

    def encode(self) -> bytes:
        text = (
            self.data
            if isinstance(self.data, str)
            else json.dumps(self.data, ensure_ascii=False, separators=(",", ":"))
        )
        name = "" if self.event is None else f"event: {self.event}\n"
        return f"{name}data: {text}\n\n".encode()


def encode_frames(frames: Iterable[SseEvent]) -> bytes:
    return b"".join(frame.encode() for frame in frames)


CLIENT_CLOSED_REQUEST = 499
MODEL_ALIASES = frozenset({"default", ""})
MAX_ATTEMPT = 1000


class AskedCall(Protocol):
    """The part that the checked requests of all dialects share."""

    @property
    def call(self) -> ModelRequest: ...

    @property
    def stream(self) -> bool: ...

    @property
    def ignored_fields(self) -> tuple[str, ...]: ...


class ReplyFrames(Protocol):
    """The conversion of one call's events to the server-sent events of an API."""

    def push(self, event: CallEvent) -> list[SseEvent]: ...

    def finish(self) -> list[SseEvent]: ...

    def fail(self, error: SwarmError) -> list[SseEvent]: ...

    def ping(self) -> bytes: ...


Asked = TypeVar("Asked", bound=AskedCall)


@dataclass(frozen=True, slots=True)
class Dialect(Generic[Asked]):
    """One API of model calls: the route below /v1, and the functions that parse and render. `parse` raises BadRequest.

    `summary`, `description` and `responses` are for the OpenAPI description.
    """

    path: str
    summary: str
    description: str
    responses: dict[int | str, dict[str, Any]]
    parse: Callable[[Mapping[str, Any], ModelService, RunningEpisode], Asked]
    render: Callable[[Asked, CallResult, Codec], dict[str, Any]]
    open_stream: Callable[[Asked, CallHead, Codec], ReplyFrames]
    route_class: type[DirectRoute] = DirectRoute


RECORDED = (
    "Its turn is on record before the reply is complete.\n\nThe call waits while weights change. If no token comes for"
    " too long, the answer is {status} with `Retry-After`."
)
"""The description of a route that samples a reply."""


def model_router(served: Served, dialect: Dialect[Any]) -> APIRouter:
    """Return the router of one API. It needs the key of a running episode."""
    router = APIRouter(prefix="/v1", tags=["model"], route_class=dialect.route_class)

    @router.post(
        f"/{dialect.path}",
        summary=dialect.summary,
        description=dialect.description,
        response_class=Response,
        responses=dialect.responses,
    )
    async def sample(request: Request) -> Response:
        return await answer(request, served, dialect)

    return router


async def answer(request: Request, served: Served, dialect: Dialect[Asked]) -> Response:
    """Answer a model call.

    Raises the errors that refuse the request. An error after the first event ends the stream with the dialect's error
    event.
    """
    service, episode = opened(request, served)
    body = await read_object(request) or {}
    asked = dialect.parse(body, service, episode)
    ignored = asked.ignored_fields
    if episode.row.is_greedy and asked.call.params.temperature:
        ignored = (*ignored, "temperature")
    ignored = (*ignored, *service.find_overruled(episode, asked.call))
    headers = report_ignored(asked.call.model, ignored, service)
    identity = await _identity(request, dialect.path)
    every_s = interval_asked(request, is_streamed=asked.stream)
    call = service.call(episode, asked.call, identity, is_streamed=asked.stream, is_patient=every_s is not None)
    head = call.head(service.model_name)
    if asked.stream:
        frames = dialect.open_stream(asked, head, service.codec)
        events = call.events()
        # The first event is awaited before the response, so that a refused request is an HTTP error.
        first = await unless_disconnected(request, _first_of(events))
        if first is None:
            await events.aclose()
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        headers |= {"cache-control": "no-cache", "x-accel-buffering": "no"}
        return StreamingResponse(_sent(first, events, frames), media_type="text/event-stream", headers=headers)

    async def rendered() -> bytes:
        return to_json(dialect.render(asked, CallResult(head, await call.completed()), service.codec))

    answered = await answer_whole(
        request,
        rendered(),
        headers,
        every_s=every_s,
        ended=lambda: episode.closed,
        render_error=lambda error: dialect.open_stream(asked, head, service.codec).fail(error)[-1].data,
    )
    return Response(status_code=CLIENT_CLOSED_REQUEST) if answered is None else answered


def opened(request: Request, served: Served) -> tuple[ModelService, RunningEpisode]:
    """Return the service, and the episode of the request's key.

    Raises Unauthorized for a missing or unknown key, FailedEngine or EngineNotReady while no engine runs, EpisodeEnded.
    """
    key = bearer(request)
    service = served.require()
    return service, service.episodes.authorize(key)


def check_model(name: str, service: ModelService) -> None:
    """Raise NotFound if `name` is not the served model."""
    if not _is_served(name, service):
        raise NotFound(f"no model {shown(name)} here: this server serves {service.model_name!r}", param="model")


def report_ignored(model: str, fields: Sequence[str], service: ModelService) -> dict[str, str]:
    """Count the fields without effect, and return the header that names them.

    `model` is among them if it does not name the served model. Any name is accepted, because agents often have a fixed
    model name in their code and the server has only one model.
    """
    ignored = tuple(fields) if _is_served(model, service) else ("model", *fields)
    service.counts.ignore(ignored)
    return {"x-ignored-fields": ",".join(ignored)} if ignored else {}


def _is_served(name: str, service: ModelService) -> bool:
    return name in MODEL_ALIASES or name == service.model_name


async def _identity(request: Request, route: str) -> CallIdentity:
    """Return the identity of a call, by which its retries are recognized.

    The header `Idempotency-Key` names the call. Without it `x-request-id` does: a proxy may set a new one for each
    attempt of a client, but repeats it when the proxy itself retries. The libraries of OpenAI and Anthropic count
    attempts in `x-stainless-retry-count`.
    """
    headers = request.headers
    name = ""
    if key := headers.get("idempotency-key"):
        name = call_name(NameKind.CALLER, key)
    elif request_id := headers.get("x-request-id"):
        name = call_name(NameKind.CARRIER, request_id)
    digest = hashlib.sha256(f"{route}\n".encode())
    digest.update(await request.body())
    count = headers.get("x-stainless-retry-count", "")
    attempt = min(int(count), MAX_ATTEMPT) if count.isascii() and count.isdecimal() else 0
    return CallIdentity(digest.hexdigest(), attempt, name)


async def _first_of(events: AsyncGenerator[Sequence[CallEvent]]) -> Sequence[CallEvent]:
    async for batch in events:
        if batch:
            return batch
    raise EngineFailure("the call ended without a reply: send it again")


async def _sent(
    first: Sequence[CallEvent], events: AsyncGenerator[Sequence[CallEvent]], frames: ReplyFrames
) -> AsyncGenerator[bytes]:
    """Yield encoded events, joined where several wait, and a ping where none came for a while."""
    try:
        yield encode_frames(frame for event in first for frame in frames.push(event))
        async for batch in events:
            yield encode_frames(frame for event in batch for frame in frames.push(event)) if batch else frames.ping()
        yield encode_frames(frames.finish())
    except SwarmError as error:
        yield encode_frames(frames.fail(error))
    finally:
        await events.aclose()
