"""The routes that convert text to token ids and back, with the paths and shapes of vLLM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, cast

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BeforeValidator, Field

from swarm.errors import BadRequest, UnknownParameter
from swarm.gateway.dialects.chat.request import parse_chat_request
from swarm.gateway.dialects.completions.request import token_ids
from swarm.gateway.dialects.endpoint import opened, report_ignored
from swarm.gateway.dialects.fields import (
    ANY_MODEL,
    FieldTable,
    StrictBody,
    checked_body,
    honoured,
    never,
    refused,
    unknown_fields,
)
from swarm.gateway.http.openapi import IGNORED_FIELDS, errors
from swarm.gateway.http.routes import DirectRoute, read_object
from swarm.gateway.served import Served
from swarm.rollout.model_request import Conversation, SamplingDefaults
from swarm.tracker.codec import Codec

MAX_TOKENS = 2**20

_DEFAULT_MODEL = "default"
_MODEL_NOTE = f"{ANY_MODEL}; may be left out"
_UNSAMPLED = SamplingDefaults(temperature=1.0, top_p=1.0, max_tokens=1)

TOKENIZE_FIELDS: FieldTable = MappingProxyType(
    honoured("model", note=_MODEL_NOTE)
    | honoured("prompt", "messages", note="one of the two")
    | honoured("tools", "chat_template_kwargs", note="with `messages`")
    | honoured("add_generation_prompt", note="with `messages`; true by default")
    | honoured("return_token_strs")
    | refused("add_special_tokens", False, note="only the chat template adds special tokens")
    | refused("continue_final_message", False)
    | never("chat_template", "media_io_kwargs", "mm_processor_kwargs")
)
"""Every documented field of vLLM's tokenize."""

DETOKENIZE_FIELDS: FieldTable = MappingProxyType(honoured("tokens") | honoured("model", note=_MODEL_NOTE))


def _ids(given: object) -> object:
    # An empty list is allowed here: it is an empty text.
    return given if not isinstance(given, list) else token_ids(cast("list[object]", given)) if given else ()


class TokenizeBody(StrictBody):
    model: str | None = None
    prompt: str | None = None
    add_generation_prompt: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(StrictBody):
    model: str | None = None
    tokens: Annotated[tuple[int, ...], BeforeValidator(_ids), Field(max_length=MAX_TOKENS)]


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


def tokenize_router(served: Served) -> APIRouter:
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
        body = await read_object(request) or {}
        asked = checked_body(TokenizeBody, body, TOKENIZE_FIELDS)
        ids = _encode(asked, body, service.codec)
        answer: dict[str, Any] = {
            "count": len(ids),
            "max_model_len": service.episodes.info.context_length,
            "tokens": list(ids),
            "token_strs": service.codec.token_text(ids) if asked.return_token_strs else None,
        }
        ignored = unknown_fields(body, TOKENIZE_FIELDS)
        return JSONResponse(answer, headers=report_ignored(asked.model or _DEFAULT_MODEL, ignored, service))

    @router.post(
        "/detokenize",
        summary="The text of token ids",
        response_class=Response,
        responses=_responses("The text, with special tokens by name.", _TEXT),
    )
    async def detokenize(request: Request) -> Response:
        service, _ = opened(request, served)
        body = await read_object(request) or {}
        asked = checked_body(DetokenizeBody, body, DETOKENIZE_FIELDS)
        answer = {"prompt": _decode(asked.tokens, service.codec)}
        ignored = unknown_fields(body, DETOKENIZE_FIELDS)
        return JSONResponse(answer, headers=report_ignored(asked.model or _DEFAULT_MODEL, ignored, service))

    return router


def _encode(asked: TokenizeBody, body: Mapping[str, Any], codec: Codec) -> tuple[int, ...]:
    """Return the tokens of a text, or of a conversation that is checked like that of a chat request."""
    is_chat = body.get("messages") is not None
    if is_chat == (asked.prompt is not None):
        raise BadRequest("send either prompt or messages", param="prompt")
    if not is_chat:
        for name in ("tools", "chat_template_kwargs", "add_generation_prompt"):
            if body.get(name) is not None:
                raise BadRequest(f"{name} goes with messages, not with a prompt", param=name)
        return codec.encode_text(asked.prompt or "")
    fields = {name: body[name] for name in ("messages", "tools", "chat_template_kwargs") if name in body}
    (conversation,) = parse_chat_request({"model": _DEFAULT_MODEL, **fields}, _UNSAMPLED).call.prompts
    assert isinstance(conversation, Conversation)
    for name in conversation.template_options:
        if not codec.reads_option(name):
            raise UnknownParameter(f"the model's chat template does not read {name}: leave it out", param=name)
    text = codec.render_text(
        conversation.messages,
        conversation.tools,
        conversation.template_options,
        generation_prompt=asked.add_generation_prompt is not False,
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
