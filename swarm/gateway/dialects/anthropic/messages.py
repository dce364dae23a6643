"""The conversion of conversations in Anthropic's API to chat messages, and of tool inputs in both directions."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Annotated, Any, Literal, Self, cast

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError, from_json

from swarm.gateway.dialects.fields import Strict, shown, type_of, unsupported
from swarm.types import Message, Turn

MAX_MESSAGES = 100_000
UNREADABLE = "INVALID_JSON"
"""The key, from Anthropic's documentation, for tool arguments that are not the JSON text of an object."""

ATTRIBUTION = "x-anthropic-billing-header:"
"""The beginning of a system block that Claude Code adds for billing. It changes with every request, so it is no part of
the prompt."""

_BLOCKS_BY_ROLE: Mapping[str, frozenset[str]] = {
    "system": frozenset({"text"}),
    "user": frozenset({"text", "tool_result"}),
    "assistant": frozenset({"text", "thinking", "redacted_thinking", "tool_use"}),
}
_BLOCKS = frozenset[str]().union(*_BLOCKS_BY_ROLE.values())


def _as_blocks(content: object) -> object:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _known(block: object) -> object:
    kind = type_of(block)
    if not isinstance(kind, str):
        raise PydanticCustomError("block", "a content block must be an object with a type")
    if kind not in _BLOCKS:
        raise unsupported("content blocks of type {kind} are not supported: send text", kind=shown(kind))
    return block


def _text_only(block: object) -> object:
    if (kind := type_of(block)) != "text":
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
    """One message of a request. Only the content of an assistant may be empty."""

    role: Literal["user", "assistant", "system"]
    content: Annotated[list[_Block], BeforeValidator(_as_blocks, json_schema_input_type=str | list[_Block])]

    @model_validator(mode="after")
    def _of_its_role(self) -> Self:
        for block in self.content:
            if block.type not in _BLOCKS_BY_ROLE[self.role]:
                raise PydanticCustomError(
                    "role",
                    "a message with the role {role} may not have blocks of type {kind}",
                    {"role": self.role, "kind": block.type},
                )
        if not self.content and self.role != "assistant":
            raise PydanticCustomError("missing", "a message with the role {role} needs content", {"role": self.role})
        return self


class RecordedReplies:
    """The replies of one episode's turns.

    A client gets a tool call as a parsed object and sends that object back, but the prompt needs the text that the
    model wrote. A client may also ask to omit reasoning, and then sends back only its signature. Both are looked up
    here, so that the prompt has exactly the text that was sampled.
    """

    def __init__(self, turns: Iterable[Turn] = ()) -> None:
        self._turns = tuple(turns)
        self._arguments: dict[tuple[str, str], str] | None = None

    def arguments(self, call_id: str, name: str, given: Mapping[str, Any], defaults: Mapping[str, Any]) -> str:
        """Return the text of a tool call's arguments.

        It is the model's own text if `given` is the parsed form that the client got, else `given` as JSON. Parameters
        with the `defaults` of the tool count as given, because Claude Code adds those that a call leaves out.
        """
        if self._arguments is None:
            self._arguments = {
                (call["id"], call["function"]["name"]): call["function"]["arguments"]
                for turn in self._turns
                for call in turn.reply.get("tool_calls") or ()
            }
        written = self._arguments.get((call_id, name))
        if written is not None and _same({**defaults, **tool_input(written)}, {**defaults, **given}):
            return written
        return json.dumps(given, ensure_ascii=False)

    def reasoning(self, signature: str) -> str:
        """Return all reasoning of the reply with this signature, or an empty string if there is none."""
        thoughts = (turn.reply.get("reasoning_content") for turn in self._turns if turn.call_id == signature)
        return next(thoughts, None) or ""


def declared_defaults(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults that a JSON schema declares for the properties of an object."""
    properties: object = schema.get("properties")
    named = cast("dict[str, object]", properties) if isinstance(properties, dict) else {}
    declared = {name: cast("dict[str, Any]", each) for name, each in named.items() if isinstance(each, dict)}
    return {name: each["default"] for name, each in declared.items() if "default" in each}


def tool_input(arguments: str) -> dict[str, Any]:
    """Return the object in a call's argument text.

    If clients could not parse the text, the object has the whole text under the key UNREADABLE.
    """
    value = _readable(arguments)
    return {UNREADABLE: arguments} if value is None else value


def input_json(arguments: str) -> str:
    """Return the JSON text of `tool_input`, which is the argument text itself if clients can parse it."""
    return json.dumps({UNREADABLE: arguments}) if _readable(arguments) is None else arguments


def _readable(arguments: str) -> dict[str, Any] | None:
    """Return the parsed object.

    Returns None for other JSON values, more than 200 levels, infinite numbers and half surrogate pairs.
    """
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
    """Return whether two values are equal to a JSON client.

    Numbers are equal if they are equal as doubles. Unlike in Python, true is not 1.
    """
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
    """Return the system prompt as one message, and the names of the blocks that are left out of it."""
    blocks = list(enumerate(system or ()))
    left_out = [f"system.{index}" for index, block in blocks if _is_attribution(block.text)]
    kept = [block for _, block in blocks if not _is_attribution(block.text)]
    return [{"role": "system", "content": _joined(kept)}] if kept else [], left_out


def _is_attribution(text: str) -> bool:
    return text.startswith(ATTRIBUTION) and "\n" not in text.strip()


ToolDefaults = Mapping[str, Mapping[str, Any]]
"""The defaults of parameters by the name of the tool."""


def chat_messages(messages: Sequence[MessageBody], replies: RecordedReplies, defaults: ToolDefaults) -> list[Message]:
    """Return the messages as chat messages. Consecutive ones of a user, or of the assistant, are joined first.

    `defaults` are those of the tools of the request.
    """
    chat: list[Message] = []
    for role, group in groupby(messages, key=lambda message: message.role):
        if role == "system":
            chat.extend({"role": "system", "content": _joined(message.content)} for message in group)
            continue
        blocks = [block for message in group for block in message.content]
        chat.extend([_assistant(blocks, replies, defaults)] if role == "assistant" else _user(blocks))
    return chat


def has_redacted_thinking(messages: Iterable[MessageBody]) -> bool:
    return any(isinstance(block, _RedactedThinking) for message in messages for block in message.content)


def _joined(blocks: Iterable[object]) -> str:
    return "".join(block.text for block in blocks if isinstance(block, _Text))


def _user(blocks: Sequence[_Block]) -> list[Message]:
    """Return one message per tool result, and one per piece of text before, between and after the results."""
    chat: list[Message] = []
    for is_result, group in groupby(blocks, key=lambda block: isinstance(block, _ToolResult)):
        if is_result:
            chat.extend(_tool_message(block) for block in group if isinstance(block, _ToolResult))
        else:
            chat.append({"role": "user", "content": _joined(group)})
    return chat


def _tool_message(result: _ToolResult) -> Message:
    """Return the message of a tool result. `is_error` is set for chat templates that read it."""
    message: dict[str, Any] = {
        "role": "tool",
        "tool_call_id": result.tool_use_id,
        "content": _joined(result.content or ()),
    }
    return {**message, "is_error": True} if result.is_error else message


def _assistant(blocks: Sequence[_Block], replies: RecordedReplies, defaults: ToolDefaults) -> Message:
    message: dict[str, Any] = {"role": "assistant", "content": _joined(blocks)}
    if reasoning := _reasoning([block for block in blocks if isinstance(block, _Thinking)], replies):
        message["reasoning_content"] = reasoning
    if calls := [_tool_call(block, replies, defaults) for block in blocks if isinstance(block, _ToolUse)]:
        message["tool_calls"] = calls
    return message


def _reasoning(blocks: Sequence[_Thinking], replies: RecordedReplies) -> str:
    thoughts = "".join(block.thinking for block in blocks)
    # Reasoning without text was omitted at the client's request: each signature stands for that of one reply.
    return thoughts or "".join(map(replies.reasoning, dict.fromkeys(block.signature for block in blocks)))


def _tool_call(block: _ToolUse, replies: RecordedReplies, defaults: ToolDefaults) -> dict[str, Any]:
    arguments = replies.arguments(block.id, block.name, block.input, defaults.get(block.name, {}))
    return {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": arguments}}
