"""The assistant message of one completion, built while its tokens arrive.

Place in the flow: detokenizer (text.py), then tool-call parser (hermes.py), then the message that the gateway sends
and the turn records. Knows nothing of HTTP.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from swarm.tracker.hermes import HermesStream, ToolCall
from swarm.tracker.text import TextStream
from swarm.types import TextPart, ToolCallPart

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


class ReplyStream:
    """`push` token ids and get the parts of the reply that are certain; `message` is whole after `finish`."""

    def __init__(self, text: TextStream, *, parse_tools: bool, turn_index: int) -> None:
        self._text = text
        self._calls = HermesStream() if parse_tools else None
        self._turn_index = turn_index
        self._content: list[str] = []
        self._tool_calls: list[dict[str, Any]] = []

    def push(self, token_ids: Sequence[int]) -> list[str | dict[str, Any]]:
        """Pieces of content, and whole tool calls in the OpenAI shape, in order."""
        return self._kept(self._parsed(self._text.push(token_ids)))

    def is_exact(self, ids):
        return True

    def finish(self) -> list[str | dict[str, Any]]:
        """What was held back until no more tokens come."""
        parts = self._parsed(self._text.finish())
        return self._kept(parts + self._calls.finish() if self._calls else parts)

    @property
    def message(self) -> dict[str, Any]:
        """The message so far. `content` is None if there are tool calls and no text."""
        content = "".join(self._content)
        message: dict[str, Any] = {"role": "assistant", "content": content or (None if self._tool_calls else "")}
        if self._tool_calls:
            message["tool_calls"] = list(self._tool_calls)
        return message

    def _parsed(self, text: str) -> list[str | ToolCall]:
        if self._calls:
            return self._calls.push(text)
        return [text] if text else []

    def _kept(self, parts: list[str | ToolCall]) -> list[str | dict[str, Any]]:
        kept: list[str | dict[str, Any]] = []
        for part in parts:
            if isinstance(part, str):
                self._content.append(part)
                kept.append(TextPart(part))
            else:
                call = {
                    "id": call_id(self._turn_index, len(self._tool_calls)),
                    "type": "function",
                    "function": {"name": part.name, "arguments": part.arguments},
                }
                self._tool_calls.append(call)
                kept.append(ToolCallPart(call["id"], part.name, part.arguments))
        return kept


def call_id(turn_index: int, call_index: int) -> str:
    """A tool call's id, unique in its episode: nine letters and digits, the only form Mistral's templates accept."""
    return "call" + _base36(turn_index, 3) + _base36(call_index, 2)


def _base36(number: int, width: int) -> str:
    digits = ""
    while number:
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
    return digits.rjust(width, "0")
