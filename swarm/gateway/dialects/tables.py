"""All field tables, by route.

Place in the flow: top of the dialects; the docs are written from it and tests walk it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from swarm.gateway.dialects.anthropic.request import COUNT_FIELDS, MESSAGE_FIELDS
from swarm.gateway.dialects.chat.request import CHAT_FIELDS
from swarm.gateway.dialects.completions.request import COMPLETION_FIELDS
from swarm.gateway.dialects.fields import FieldTable
from swarm.gateway.dialects.responses.request import RESPONSE_FIELDS
from swarm.gateway.dialects.tokenize.request import DETOKENIZE_FIELDS, TOKENIZE_FIELDS

TABLES: Mapping[str, FieldTable] = MappingProxyType(
    {
        "/v1/chat/completions": CHAT_FIELDS,
        "/v1/completions": COMPLETION_FIELDS,
        "/v1/responses": RESPONSE_FIELDS,
        "/v1/messages": MESSAGE_FIELDS,
        "/v1/messages/count_tokens": COUNT_FIELDS,
        "/tokenize": TOKENIZE_FIELDS,
        "/detokenize": DETOKENIZE_FIELDS,
    }
)
