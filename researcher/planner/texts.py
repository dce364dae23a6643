"""The form of texts for a planner: rounded numbers, capped texts, and foreign text marked as data.

Programs, episodes, notes and messages of other people are foreign: a model must not take them for instructions.
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from experiments_db import JsonObject

MAX_DATA_CHARS = 12_000
MAX_ITEM_CHARS = 400
MAX_ITEMS = 20
MAX_CODE_CHARS = 40_000
"""The most characters of a program that a prompt shows, which is also the longest program that a check accepts."""
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
    return "\n".join(f"[{message.get('role', '?')}] {clip(message_as_text(message), most)}" for message in messages)


def requests_as_text(requests: JsonObject, most: int) -> str:
    """Return a request of an agent beside that of the plain agent, each text cut to `most` characters."""
    asked = {"The plain agent asks": requests["plain"], "This agent asks": requests["own"]}
    return "\n".join(
        [
            f"{requests['unchanged']} of {requests['requests']} requests have the words of their task unchanged.",
            *(f"{who} (task {requests['task']}):\n{_request_as_text(each, most)}" for who, each in asked.items()),
        ]
    )


def _request_as_text(request: JsonObject, most: int) -> str:
    others = [f"[{name}] {clip(json.dumps(value, ensure_ascii=False), most)}"
              for name, value in request.items() if name != "messages"]  # fmt: skip
    return "\n".join([messages_as_text(request.get("messages", []), most), *others])


def settings_as_text(settings: Mapping[str, Any]) -> str:
    """Return settings, one a line."""
    return "\n".join(f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in sorted(settings.items()))


def message_as_text(message: JsonObject) -> str:
    """Return the text of a message in the OpenAI shape, then its tool calls."""
    content = message.get("content")
    parts = content if isinstance(content, list) else [] if content is None else [content]
    texts = [str(part["text"]) if isinstance(part, dict) and "text" in part else part for part in parts]
    texts = [text if isinstance(text, str) else json.dumps(text, ensure_ascii=False) for text in texts]
    calls = [call.get("function", {}) for call in message.get("tool_calls") or ()]
    return "\n".join([*texts, *(f"calls {call.get('name')}({call.get('arguments')})" for call in calls)]).strip()


def count_of(number: int, what: str) -> str:
    """Return a number with its noun, such as "1 seed"."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def quote_data(items: Iterable[str]) -> str:
    """Return foreign text between delimiters that it cannot contain.

    Each item is one capped line, and only the newest items are kept.
    """
    lines = [" ".join(item.split())[:MAX_ITEM_CHARS] for item in items][-MAX_ITEMS:]
    return quote_text("\n".join(lines))


def quote_text(text: str) -> str:
    """Return the text between delimiters, capped at its beginning: errors of programs stand at the end."""
    left_out = len(text) - MAX_DATA_CHARS
    if left_out > 0:
        text = f"[... {left_out} characters are left out ...]\n{text[-MAX_DATA_CHARS:]}"
    return as_data(text)


def quote_code(code: str) -> str:
    """Return a program between delimiters: all of it, up to MAX_CODE_CHARS."""
    left_out = len(code) - MAX_CODE_CHARS
    if left_out > 0:
        code = f"{code[:MAX_CODE_CHARS]}\n[... {left_out} characters are left out: the tool `code` shows them ...]"
    return as_data(code)


def describe_invalid(error: ValidationError, whole: str) -> str:
    """Return what is wrong with an answer or with arguments, the first five faults by their fields."""
    faults: list[str] = []
    for item in error.errors(include_url=False)[:5]:
        place = ".".join(map(str, item["loc"])) or whole
        is_unknown = item["type"] == "extra_forbidden"
        faults.append(f"{place}: {'there is no such field: leave it out' if is_unknown else item['msg']}")
    return "; ".join(faults)
