"""The routes that convert text to token ids and back, with the paths and shapes of vLLM."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from swarm.errors import BadRequest, UnknownParameter
from swarm.gateway.dialects.endpoint import opened, report_ignored
from swarm.gateway.dialects.tokenize.request import TokenizeRequest, parse_detokenize_request, parse_tokenize_request
from swarm.gateway.http.openapi import IGNORED_FIELDS, errors
from swarm.gateway.http.routes import DirectRoute, read_object
from swarm.rollout.completion import ModelService
from swarm.tracker.codec import Codec

_TOKENS: dict[str, Any] = {"type": "array", "items": {"type": "integer", "minimum": 0}}
_COUNTED: dict[str, Any] = {
    "type": "object",
    "properties": {
        "count": {"type": "integer"},
        "max_model_len": {"type": "integer", "description": "The most tokens of prompt and reply together."},
        "tokens": _TOKENS,
        "token_strs": {"type": ["array", "null"], "items": {"type": "string"}},
    },
}
_TEXT: dict[str, Any] = {"type": "object", "properties": {"prompt": {"type": "string"}}}


def tokenize_router(served: Callable[[], ModelService | None]) -> APIRouter:
    """Return the router of tokenize and detokenize. It needs the key of a running episode."""
    router = APIRouter(tags=["model"], route_class=DirectRoute)

    @router.post(
        "/tokenize",
        summary="The token ids of a text or a conversation",
        response_class=Response,
        responses=_responses("The number of tokens, and their ids.", _COUNTED),
    )
    async def tokenize(request: Request) -> Response:
        """Tokenize a text or a conversation.

        The result does not depend on earlier turns. A model call that extends an earlier turn keeps that turn's tokens,
        which may differ from the tokenizer's result for the same text.
        """
        service, _ = opened(request, served)
        asked = parse_tokenize_request(await read_object(request) or {})
        token_ids = _encode(asked, service.codec)
        body: dict[str, Any] = {
            "count": len(token_ids),
            "max_model_len": service.episodes.info.context_length,
            "tokens": list(token_ids),
            "token_strs": service.codec.token_text(token_ids) if asked.return_token_strs else None,
        }
        return JSONResponse(body, headers=report_ignored(asked.model, asked.ignored_fields, service))

    @router.post(
        "/detokenize",
        summary="The text of token ids",
        response_class=Response,
        responses=_responses("The text, with special tokens by name.", _TEXT),
    )
    async def detokenize(request: Request) -> Response:
        service, _ = opened(request, served)
        asked = parse_detokenize_request(await read_object(request) or {})
        body = {"prompt": _decode(asked.token_ids, service.codec)}
        return JSONResponse(body, headers=report_ignored(asked.model, asked.ignored_fields, service))

    return router


def _encode(asked: TokenizeRequest, codec: Codec) -> tuple[int, ...]:
    if asked.conversation is None:
        return codec.encode_text(asked.prompt or "")
    conversation = asked.conversation
    for name in conversation.template_options:
        if not codec.reads_option(name):
            raise UnknownParameter(f"the model's chat template does not read {name}: leave it out", param=name)
    text = codec.render_text(
        conversation.messages,
        conversation.tools,
        conversation.template_options,
        generation_prompt=asked.generation_prompt,
    )
    return codec.encode_text(text)


def _decode(token_ids: Sequence[int], codec: Codec) -> str:
    """Return the text of token ids.

    Raises BadRequest for an id outside the vocabulary, as its text would be left out silently.
    """
    unknown = max(token_ids, default=0)
    if unknown >= codec.vocabulary_size:
        raise BadRequest(f"tokens: {unknown} is outside the vocabulary of {codec.vocabulary_size}", param="tokens")
    return codec.raw_text(token_ids)


def _responses(description: str, schema: dict[str, Any]) -> dict[int | str, dict[str, Any]]:
    answer = {
        "description": description,
        "headers": IGNORED_FIELDS,
        "content": {"application/json": {"schema": schema}},
    }
    return {200: answer, **errors(400, 401, 409, 503)}
