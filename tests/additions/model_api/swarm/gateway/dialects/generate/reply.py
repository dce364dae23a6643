"""Replies of POST /v1/generate."""

from __future__ import annotations

from typing import Any

from swarm.gateway.dialects.generate.request import GenerateRequest, parse_generate_request

from swarm.gateway.dialects.endpoint import Dialect, ReplyFrames
from swarm.rollout.deduplication import CallHead, CallResult
from swarm.tracker.codec import Codec


def render_generated_text(request: GenerateRequest, result: CallResult, codec: Codec) -> dict[str, Any]:
    [completion] = result.completions
    return {"generated_text": completion.turn.reply.get("content") or "", "tokens": len(completion.turn.output_ids_T)}


def open_no_stream(request: GenerateRequest, head: CallHead, codec: Codec) -> ReplyFrames:
    raise NotImplementedError("the field stream is refused")


GENERATE = Dialect(
    path="generate",
    summary="Continue a text",
    description="Continue a text.",
    responses={},
    parse=lambda body, service, episode: parse_generate_request(body, service.defaults(episode)),
    render=render_generated_text,
    open_stream=open_no_stream,
)
