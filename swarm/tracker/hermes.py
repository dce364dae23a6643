"""Tool calls in the Hermes format, which Qwen and the bundled model speak: `<tool_call>{json}</tool_call>`.

Place in the flow: between the text of a completion and its reply message. Knows nothing of tokens or of which tools
exist: a call of an unknown tool is a call, and the agent's to answer.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from json import JSONDecoder
from typing import Any

from swarm.tracker.text import overlap

OPEN = "<tool_call>"
CLOSE = "</tool_call>"
TAGS = (OPEN, CLOSE)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call. `arguments` is the JSON text of an object, as the model wrote it."""

    name: str
    arguments: str


class HermesStream:
    """Splits text into content and tool calls as it arrives; however it is cut into pushes, the parts are the same.

    Content streams at once, save for what may be the beginning of a call. White space next to calls, and at the end of
    a reply that has some, is dropped. What is not a well-formed call is content, character for character.
    """

    def __init__(self) -> None:
        self._buffer = ""
        self._gap = ""
        self._inside = False
        self._has_content = False
        self._has_calls = False

    def push(self, text: str) -> list[str | ToolCall]:
        """The parts that are now certain, in order: pieces of content and whole calls."""
        self._buffer += text
        parts: list[str | ToolCall] = []
        while True:
            if not self._inside:
                before, opened, rest = self._buffer.partition(OPEN)
                if not opened:
                    parts.extend(self._content(self._cut(len(self._buffer) - self._uncertain())))
                    return parts
                content = before.rstrip()
                parts.extend(self._content(content))
                self._gap, self._buffer, self._inside = before[len(content) :], rest, True
            body, closed, rest = self._buffer.partition(CLOSE)
            if not closed:
                return parts
            parts.extend(self._call(body, CLOSE))
            self._buffer, self._inside = rest, False

    def finish(self) -> list[str | ToolCall]:
        """The rest. A call whose closing tag is missing behind complete JSON counts."""
        rest, self._buffer = self._buffer, ""
        if self._inside:
            self._inside = False
            return self._call(rest, "")
        return self._content(rest if rest.strip() or not self._has_calls else "")

    def _cut(self, count: int) -> str:
        text, self._buffer = self._buffer[:count], self._buffer[count:]
        return text

    def _uncertain(self) -> int:
        """Length of the end of the buffer that may be white space before a call and the beginning of its tag."""
        text = self._buffer
        certain = text[: len(text) - overlap(text, OPEN)].rstrip()
        return len(text) - len(certain)

    def _content(self, text: str) -> list[str | ToolCall]:
        if self._has_calls and not self._has_content:
            text = text.lstrip()
        if not text:
            return []
        self._has_content = True
        return [text]

    def _call(self, body: str, closing: str) -> list[str | ToolCall]:
        call = parse_call(body)
        if call is None:
            return self._content(self._gap + OPEN + body + closing)
        self._has_calls = True
        return [call]


def parse_call(body: str) -> ToolCall | None:
    """The call that `body` describes, or None. A call without arguments has the arguments `{}`."""
    try:
        fields = _top_level(body.strip())
        name, arguments = json.loads(fields["name"]), fields.get("arguments", "{}")
        value = _DECODER.decode(arguments)
        if isinstance(value, str):
            arguments, value = value, _DECODER.decode(value)
        # Escapes can spell lone surrogates, which no response could carry.
        (name + arguments).encode()
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return ToolCall(name, arguments) if name and isinstance(value, dict) else None


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


_DECODER = JSONDecoder(parse_constant=_refuse)
_SPACE = " \t\n\r"


def _top_level(text: str) -> dict[str, str]:
    """The fields of a JSON object as the text of their values. Raises ValueError."""
    if not isinstance(_DECODER.decode(text), dict):
        raise ValueError("not an object")
    fields: dict[str, str] = {}
    position = _skip(text, 1)
    while text[position] != "}":
        key, position = _DECODER.raw_decode(text, position)
        start = _skip(text, _skip(text, position) + 1)
        _, end = _DECODER.raw_decode(text, start)
        fields[key] = text[start:end]
        position = _skip(text, end)
        if text[position] == ",":
            position = _skip(text, position + 1)
    return fields


def _skip(text: str, position: int) -> int:
    while text[position] in _SPACE:
        position += 1
    return position
