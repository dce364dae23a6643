"""The form of a tool's texts: rounded numbers, capped texts, and foreign text marked as data."""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Mapping
from typing import Any

from experiments_db import JsonObject

PAGE_CHARS = 10_000
"""The characters of one page of a long text, less than a tool's result may have."""


def as_data(text: str) -> str:
    """Return foreign text between marks that it cannot contain."""
    mark = secrets.token_hex(6)
    return f"BEGIN DATA {mark}\n{text}\nEND DATA {mark}"


def number(value: float | None) -> str:
    """Return a number with four digits; `-` for a missing one."""
    return "-" if value is None or not math.isfinite(value) else f"{value:.4g}"


def clip(text: str, most: int) -> str:
    """Return the beginning and the end of a text, with what is left out counted."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]} [... {len(text) - 2 * half} characters left out ...] {text[-half:]}"


def page(text: str, offset: int) -> str:
    """Return one page of a foreign text from a character on, and how to get the next one."""
    shown = text[offset : offset + PAGE_CHARS]
    end = offset + len(shown)
    if not offset and end >= len(text):
        return as_data(text)
    more = f"; the rest with offset {end}" if end < len(text) else ""
    return f"{as_data(shown)}\ncharacters {offset} to {end} of {len(text)}{more}"


def messages_as_text(messages: list[JsonObject], most: int) -> str:
    """Return a conversation, one message after the other, each cut to `most` characters."""
    return "\n".join(f"[{message.get('role', '?')}] {clip(_content(message), most)}" for message in messages)


def settings_as_text(settings: Mapping[str, Any]) -> str:
    """Return settings, one a line."""
    return "\n".join(f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in sorted(settings.items()))


def _content(message: JsonObject) -> str:
    content = message.get("content")
    text = content if isinstance(content, str) else "" if content is None else json.dumps(content, ensure_ascii=False)
    calls = [call.get("function", {}) for call in message.get("tool_calls") or ()]
    return "\n".join([text, *(f"calls {call.get('name')}({call.get('arguments')})" for call in calls)]).strip()
