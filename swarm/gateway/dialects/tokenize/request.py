"""The request bodies of POST /tokenize and POST /detokenize, in vLLM's shapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, cast

from pydantic import BeforeValidator, Field

from swarm.errors import BadRequest
from swarm.gateway.dialects.chat.request import parse_chat_request
from swarm.gateway.dialects.completions.request import token_ids
from swarm.gateway.dialects.fields import (
    ANY_MODEL,
    FieldTable,
    StrictBody,
    checked_body,
    honoured,
    refused,
    unknown_fields,
)
from swarm.rollout.model_request import Conversation, SamplingDefaults

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
    | refused("chat_template")
    | refused("media_io_kwargs")
    | refused("mm_processor_kwargs")
)
"""Every documented field of vLLM's tokenize."""

DETOKENIZE_FIELDS: FieldTable = MappingProxyType(honoured("tokens") | honoured("model", note=_MODEL_NOTE))


@dataclass(frozen=True, slots=True)
class TokenizeRequest:
    """A checked tokenize request with either `prompt` or `conversation`."""

    model: str
    prompt: str | None
    conversation: Conversation | None
    generation_prompt: bool
    return_token_strs: bool
    ignored_fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DetokenizeRequest:
    """A checked detokenize request."""

    model: str
    token_ids: tuple[int, ...]
    ignored_fields: tuple[str, ...]


def parse_tokenize_request(body: Mapping[str, Any]) -> TokenizeRequest:
    """Return the checked request of a tokenize body.

    Raises BadRequest, or UnknownParameter for a field that cannot be honoured. Both name the field in `param`.
    """
    checked = checked_body(TokenizeBody, body, TOKENIZE_FIELDS)
    is_chat = body.get("messages") is not None
    if is_chat == (checked.prompt is not None):
        raise BadRequest("send either prompt or messages", param="prompt")
    if not is_chat:
        for name in ("tools", "chat_template_kwargs", "add_generation_prompt"):
            if body.get(name) is not None:
                raise BadRequest(f"{name} goes with messages, not with a prompt", param=name)
    return TokenizeRequest(
        model=checked.model or _DEFAULT_MODEL,
        prompt=checked.prompt,
        conversation=_conversation(body) if is_chat else None,
        generation_prompt=checked.add_generation_prompt is not False,
        return_token_strs=bool(checked.return_token_strs),
        ignored_fields=unknown_fields(body, TOKENIZE_FIELDS),
    )


def parse_detokenize_request(body: Mapping[str, Any]) -> DetokenizeRequest:
    """Return the checked request of a detokenize body. Raises BadRequest that names the field in `param`."""
    checked = checked_body(DetokenizeBody, body, DETOKENIZE_FIELDS)
    ignored = unknown_fields(body, DETOKENIZE_FIELDS)
    return DetokenizeRequest(checked.model or _DEFAULT_MODEL, checked.tokens, ignored)


def _conversation(body: Mapping[str, Any]) -> Conversation:
    """Return the conversation of a body, checked like that of a chat request."""
    fields = {name: body[name] for name in ("messages", "tools", "chat_template_kwargs") if name in body}
    (conversation,) = parse_chat_request({"model": _DEFAULT_MODEL, **fields}, _UNSAMPLED).call.prompts
    assert isinstance(conversation, Conversation)
    return conversation


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
