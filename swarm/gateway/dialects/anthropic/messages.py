"""Conversations of Anthropic's messages API in the canonical chat shape, and tool inputs there and back.

Place in the flow: below request.py, which checks the rest of a body, and reply.py, which shows replies.
Knows nothing of tokens or of HTTP.

A client gets a tool call as a parsed object and sends that object back, while the model is shown, and was trained on,
the text it wrote. Likewise it may keep reasoning from being shown and sends back no more than its signature. Both are
looked up among the recorded replies, so that a conversation that returns is the one that was sampled.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Annotated, Any, Literal, Self, cast

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError, from_json

from swarm.gateway.dialects.fields import Strict, shown, unsupported
from swarm.types import Message, Turn

MAX_MESSAGES = 100_000
UNREADABLE = "INVALID_JSON"
"""The key under which Anthropic's documentation has text passed on that is not the JSON of an object."""

ATTRIBUTION = "x-anthropic-billing-header:"
"""Begins a system block that Claude Code addresses to whoever bills; it changes with every request."""

_BLOCKS_BY_ROLE: Mapping[str, frozenset[str]] = {
    "system": frozenset({"text"}),
    "user": frozenset({"text", "tool_result"}),
    "assistant": frozenset({"text", "thinking", "redacted_thinking", "tool_use"}),
}
_BLOCKS = frozenset[str]().union(*_BLOCKS_BY_ROLE.values())


def _as_blocks(content: object) -> object:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _kind(block: object) -> object:
    return cast("dict[str, object]", block).get("type") if isinstance(block, dict) else None


def _known(block: object) -> object:
    kind = _kind(block)
    if not isinstance(kind, str):
        raise PydanticCustomError("block", "a content block is an object with a type")
    if kind not in _BLOCKS:
        raise unsupported("content blocks of type {kind} are not supported: send text", kind=shown(kind))
    return block


def _text_only(block: object) -> object:
    if (kind := _kind(block)) != "text":
        raise unsupported("only text is supported here, not blocks of type {kind}", kind=shown(kind))
    return block


class _Text(Strict):
    type: Literal["text"]
    text: str


class _Thinking(Strict):
    type: Literal["thinking"]
    thinking: str
    signature: str


class _RedactedThinking(Strict):
    type: Literal["redacted_thinking"]
    data: str


class _ToolUse(Strict):
    type: Literal["tool_use"]
    id: str = Field(min_length=1)
    name: str = Field(min_length=1)
    input: dict[str, Any]


_Texts = list[Annotated[_Text, BeforeValidator(_text_only)]]
TextBlocks = Annotated[_Texts, BeforeValidator(_as_blocks, json_schema_input_type=str | _Texts)]


class _ToolResult(Strict):
    type: Literal["tool_result"]
    tool_use_id: str = Field(min_length=1)
    content: TextBlocks | None = None
    is_error: bool | None = None


_Block = Annotated[
    Annotated[_Text | _Thinking | _RedactedThinking | _ToolUse | _ToolResult, Field(discriminator="type")],
    BeforeValidator(_known),
]


class MessageBody(Strict):
    """One message of a request. Only an assistant may have said nothing."""

    role: Literal["user", "assistant", "system"]
    content: Annotated[list[_Block], BeforeValidator(_as_blocks, json_schema_input_type=str | list[_Block])]

    @model_validator(mode="after")
    def _of_its_role(self) -> Self:
        for block in self.content:
            if block.type not in _BLOCKS_BY_ROLE[self.role]:
                raise PydanticCustomError(
                    "role",
                    "a message with the role {role} has no blocks of type {kind}",
                    {"role": self.role, "kind": block.type},
                )
        if not self.content and self.role != "assistant":
            raise PydanticCustomError("missing", "a message with the role {role} needs content", {"role": self.role})
        return self


class RecordedReplies:
    """What the turns of one episode said."""

    def __init__(self, turns: Iterable[Turn] = ()) -> None:
        self._turns = tuple(turns)
        self._arguments: dict[tuple[str, str], str] | None = None

    def arguments(self, call_id: str, name: str, given: Mapping[str, Any]) -> str:
        """The text of a tool call's arguments: as the model wrote it, if this is what was shown of it."""
        if self._arguments is None:
            self._arguments = {
                (call["id"], call["function"]["name"]): call["function"]["arguments"]
                for turn in self._turns
                for call in turn.reply.get("tool_calls") or ()
            }
        written = self._arguments.get((call_id, name))
        if written is not None and _same(tool_input(written), given):
            return written
        return json.dumps(given, ensure_ascii=False)

    def reasoning(self, signature: str) -> str:
        """All reasoning of the reply that was signed so; empty if there is none."""
        said = (turn.reply.get("reasoning_content") for turn in self._turns if turn.call_id == signature)
        return next(said, None) or ""


def tool_input(arguments: str) -> dict[str, Any]:
    """The object that a call's argument text spells, or the text itself if clients could not read it as one."""
    value = _readable(arguments)
    return {UNREADABLE: arguments} if value is None else value


def input_json(arguments: str) -> str:
    """The JSON text of `tool_input`: the argument text itself if clients can read it."""
    return json.dumps({UNREADABLE: arguments}) if _readable(arguments) is None else arguments


def _readable(arguments: str) -> dict[str, Any] | None:
    """None for anything but an object, for more than 200 levels, infinite numbers and half surrogate pairs."""
    try:
        value: Any = from_json(arguments, allow_inf_nan=False)
    except ValueError:
        return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) and _is_finite(value) else None


def _is_finite(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_is_finite(each) for each in cast("dict[str, Any]", value).values())
    if isinstance(value, list):
        return all(_is_finite(each) for each in cast("list[Any]", value))
    return not isinstance(value, float) or math.isfinite(value)


def _same(left: Any, right: Any) -> bool:
    """Equal as JSON is read by clients: true is no number, and numbers are those a double tells apart."""
    if isinstance(left, dict) and isinstance(right, dict):
        ours, theirs = cast("dict[str, Any]", left), cast("dict[str, Any]", right)
        return ours.keys() == theirs.keys() and all(_same(ours[key], theirs[key]) for key in ours)
    if isinstance(left, list) and isinstance(right, list):
        items, others = cast("list[Any]", left), cast("list[Any]", right)
        return len(items) == len(others) and all(map(_same, items, others))
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, int | float) and isinstance(right, int | float):
        return left == right or _as_double(left) == _as_double(right)
    return left == right


def _as_double(number: float) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf


def system_messages(system: Sequence[_Text] | None) -> tuple[list[Message], list[str]]:
    """The system prompt as one message, and the names of the blocks that are not addressed to the model."""
    blocks = list(enumerate(system or ()))
    left_out = [f"system.{index}" for index, block in blocks if _is_attribution(block.text)]
    kept = [block for _, block in blocks if not _is_attribution(block.text)]
    return [{"role": "system", "content": _joined(kept)}] if kept else [], left_out


def _is_attribution(text: str) -> bool:
    return text.startswith(ATTRIBUTION) and "\n" not in text.strip()


def chat_messages(messages: Sequence[MessageBody], replies: RecordedReplies) -> list[Message]:
    """Consecutive messages of a user, or of the assistant, are one turn."""
    chat: list[Message] = []
    for role, group in groupby(messages, key=lambda message: message.role):
        if role == "system":
            chat.extend({"role": "system", "content": _joined(message.content)} for message in group)
            continue
        blocks = [block for message in group for block in message.content]
        chat.extend([_assistant(blocks, replies)] if role == "assistant" else _user(blocks))
    return chat


def has_redacted_thinking(messages: Iterable[MessageBody]) -> bool:
    return any(isinstance(block, _RedactedThinking) for message in messages for block in message.content)


def _joined(blocks: Iterable[object]) -> str:
    return "".join(block.text for block in blocks if isinstance(block, _Text))


def _user(blocks: Sequence[_Block]) -> list[Message]:
    """Each tool result is a message of its own, as is the text before, between and after them."""
    chat: list[Message] = []
    for is_result, group in groupby(blocks, key=lambda block: isinstance(block, _ToolResult)):
        if is_result:
            chat.extend(_tool_message(block) for block in group if isinstance(block, _ToolResult))
        else:
            chat.append({"role": "user", "content": _joined(group)})
    return chat


def _tool_message(result: _ToolResult) -> Message:
    """`is_error` is there for templates that read it."""
    message: dict[str, Any] = {
        "role": "tool",
        "tool_call_id": result.tool_use_id,
        "content": _joined(result.content or ()),
    }
    return {**message, "is_error": True} if result.is_error else message


def _assistant(blocks: Sequence[_Block], replies: RecordedReplies) -> Message:
    message: dict[str, Any] = {"role": "assistant", "content": _joined(blocks)}
    if reasoning := _reasoning([block for block in blocks if isinstance(block, _Thinking)], replies):
        message["reasoning_content"] = reasoning
    if calls := [_tool_call(block, replies) for block in blocks if isinstance(block, _ToolUse)]:
        message["tool_calls"] = calls
    return message


def _reasoning(blocks: Sequence[_Thinking], replies: RecordedReplies) -> str:
    said = "".join(block.thinking for block in blocks)
    # Without text it was not to be shown: each signature stands for all reasoning of its reply.
    return said or "".join(map(replies.reasoning, dict.fromkeys(block.signature for block in blocks)))


def _tool_call(block: _ToolUse, replies: RecordedReplies) -> dict[str, Any]:
    arguments = replies.arguments(block.id, block.name, block.input)
    return {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": arguments}}
