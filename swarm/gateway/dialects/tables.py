"""The request bodies of all model routes, by route."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from swarm.gateway.dialects.anthropic.request import COUNT_FIELDS, MESSAGE_FIELDS, MessagesBody, PromptBody
from swarm.gateway.dialects.body_schema import BodySchema, describe_body
from swarm.gateway.dialects.chat.request import CHAT_FIELDS, ChatBody
from swarm.gateway.dialects.completions.request import COMPLETION_FIELDS, CompletionBody
from swarm.gateway.dialects.fields import FieldTable
from swarm.gateway.dialects.responses.request import RESPONSE_FIELDS, ResponseBody
from swarm.gateway.dialects.tokenize import DETOKENIZE_FIELDS, TOKENIZE_FIELDS, DetokenizeBody, TokenizeBody

_TEXT = "Reverse: ABC"
_CHAT: Mapping[str, Any] = {"model": "default", "messages": [{"role": "user", "content": _TEXT}]}

BODIES: Mapping[str, BodySchema] = MappingProxyType(
    {
        "/v1/chat/completions": BodySchema("OpenAI's", ChatBody, CHAT_FIELDS, _CHAT),
        "/v1/completions": BodySchema(
            "OpenAI's", CompletionBody, COMPLETION_FIELDS, {"model": "default", "prompt": _TEXT}
        ),
        "/v1/responses": BodySchema("OpenAI's", ResponseBody, RESPONSE_FIELDS, {"model": "default", "input": _TEXT}),
        "/v1/messages": BodySchema("Anthropic's", MessagesBody, MESSAGE_FIELDS, {**_CHAT, "max_tokens": 64}),
        "/v1/messages/count_tokens": BodySchema("Anthropic's", PromptBody, COUNT_FIELDS, _CHAT),
        "/tokenize": BodySchema("vLLM's", TokenizeBody, TOKENIZE_FIELDS, {"prompt": _TEXT}, others=(ChatBody,)),
        "/detokenize": BodySchema("vLLM's", DetokenizeBody, DETOKENIZE_FIELDS, {"tokens": [1, 2, 3]}),
    }
)
TABLES: Mapping[str, FieldTable] = MappingProxyType({route: body.fields for route, body in BODIES.items()})


def describe_bodies() -> dict[str, dict[str, Any]]:
    """Return the OpenAPI `requestBody` objects by route."""
    return {route: describe_body(body) for route, body in BODIES.items()}
