"""The conversion of items of OpenAI's Responses API to chat messages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, Literal, cast

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from swarm.errors import BadRequest, UnknownParameter
from swarm.gateway.dialects.fields import Strict, joined_text, shown, unsupported
from swarm.gateway.dialects.responses.tools import custom_arguments, custom_input, qualified_name
from swarm.tracker.conversation import canonical_message
from swarm.types import FinishReason, Message, Turn

MAX_ITEMS = 100_000

ITEM_TYPES = (
    "message",
    "function_call",
    "function_call_output",
    "custom_tool_call",
    "custom_tool_call_output",
    "reasoning",
    "item_reference",
)
_ITEM_ID = re.compile(r"(rs|msg|fc|ctc)_([0-9a-f]+)(?:_([0-9]{1,6}))?")
_RESPONSE_ID = re.compile(r"resp_([0-9a-f]+)(i?)(u?)")


@dataclass(frozen=True, slots=True)
class ResponseId:
    """The data in the id of a response: its call, and two flags that recorded turns lack.

    With `has_instructions`, the first message is the request's `instructions`, which the next response does not
    inherit. The flags are in the id so that they survive a restart of the server.
    """

    call_id: str
    has_instructions: bool
    is_stored: bool

    @classmethod
    def read(cls, text: str) -> ResponseId | None:
        match = _RESPONSE_ID.fullmatch(text)
        return cls(match[1], bool(match[2]), not match[3]) if match else None

    def __str__(self) -> str:
        return f"resp_{self.call_id}{'i' * self.has_instructions}{'u' * (not self.is_stored)}"


class RecordedResponses:
    """The responses of one episode that can be referred to.

    One reply of the model is one chat message, but several items in this API. Item ids contain the id of their call. So
    items that a client sends back become the message that was sampled, and an item can be referred to by its id alone.
    """

    def __init__(self, turns: Iterable[Turn] = ()) -> None:
        self._turns = {turn.call_id: turn for turn in turns if turn.finish_reason is not FinishReason.ABORT}

    def conversation(self, response_id: str) -> list[Message]:
        """Return the messages up to a response and including it, without its instructions.

        Raises BadRequest if there is no such response.
        """
        named = ResponseId.read(response_id)
        turn = self._turns.get(named.call_id) if named is not None and named.is_stored else None
        if named is None or turn is None:
            raise BadRequest(
                f"no stored response {shown(response_id)} in this episode: send its items as input",
                param="previous_response_id",
            )
        return [*turn.messages[named.has_instructions :], canonical_message(turn.reply)]

    def reply(self, call_id: str) -> Message | None:
        turn = self._turns.get(call_id)
        return None if turn is None else turn.reply

    def caller(self, tool_call_id: str) -> str | None:
        """Return the id of the model call whose reply has the tool call `tool_call_id`."""
        found = self._tool_calls.get(tool_call_id)
        return None if found is None else found[0]

    def arguments(self, tool_call_id: str) -> str | None:
        """Return the arguments of a tool call as the model wrote them, or None for an unknown call."""
        found = self._tool_calls.get(tool_call_id)
        return None if found is None else found[1]

    @cached_property
    def _tool_calls(self) -> dict[str, tuple[str, str]]:
        """The model call and the arguments of each tool call, by the id of the tool call."""
        return {
            call["id"]: (turn.call_id, call["function"]["arguments"])
            for turn in self._turns.values()
            for call in turn.reply.get("tool_calls") or ()
        }


class _TextPart(Strict):
    type: Literal["input_text", "output_text"]
    text: str


Text = Annotated[
    str, BeforeValidator(joined_text("input_text", "output_text"), json_schema_input_type=str | list[_TextPart])
]


class _Said(Strict):
    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Text
    id: str | None = None


class _Call(Strict):
    type: Literal["function_call"] = "function_call"
    call_id: str = Field(min_length=1)
    name: str = Field(min_length=1)
    arguments: str
    namespace: str | None = None
    id: str | None = None


class _CustomCall(Strict):
    type: Literal["custom_tool_call"]
    call_id: str = Field(min_length=1)
    name: str = Field(min_length=1)
    input: str
    namespace: str | None = None
    id: str | None = None


class _CallOutput(Strict):
    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: str = Field(min_length=1)
    output: Text


class _Thought(Strict):
    text: str


class _Reasoning(Strict):
    type: Literal["reasoning"] = "reasoning"
    id: str | None = None
    summary: list[_Thought] | None = None
    content: list[_Thought] | None = None
    encrypted_content: str | None = None


class _Reference(Strict):
    type: Literal["item_reference"]
    id: str


def _typed(item: object) -> object:
    """Return an item with its type, which clients may leave out of messages and references."""
    if not isinstance(item, dict):
        raise PydanticCustomError("item", "an input item must be an object")
    fields = cast("dict[str, object]", item)
    kind = fields.get("type") or ("message" if "role" in fields else "item_reference" if "id" in fields else None)
    if kind not in ITEM_TYPES:
        raise unsupported("input items of type {kind} are not supported: leave them out", kind=shown(kind))
    return {**fields, "type": kind}


InputItem = Annotated[
    Annotated[_Said | _Call | _CustomCall | _CallOutput | _Reasoning | _Reference, Field(discriminator="type")],
    BeforeValidator(_typed),
]

_Piece = _Said | _Call | _CustomCall | _Reasoning
"""An item that is a part of a reply."""


@dataclass(slots=True)
class _Reply:
    """One message of the assistant, assembled from items. `owner` is the id of their call, if it is known."""

    owner: str | None = None
    content: str | None = None
    reasoning: str | None = None
    calls: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def includes(self, item: _Piece, owner: str | None) -> bool:
        """Return whether the item belongs to this reply.

        If the call of either is unknown, it does as long as the order stays reasoning, text, tool calls.
        """
        if self.owner and owner:
            return self.owner == owner
        if isinstance(item, _Call | _CustomCall):
            return True
        if isinstance(item, _Said):
            return self.content is None
        return self.content is None and self.reasoning is None and not self.calls

    def message(self) -> Message:
        message: dict[str, Any] = {"role": "assistant", "content": self.content or ""}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.calls:
            message["tool_calls"] = self.calls
        return message


def chat_messages(items: Sequence[InputItem], recorded: RecordedResponses) -> list[Message]:
    """Return the items as chat messages. Reasoning, text and tool calls of one reply become one message.

    Raises BadRequest for a reference to an unknown item, and UnknownParameter for encrypted reasoning of another
    episode.
    """
    chat: list[Message] = []
    reply: _Reply | None = None
    for index, given in enumerate(items):
        item = _resolved(given, recorded, index) if isinstance(given, _Reference) else given
        if isinstance(item, _CallOutput) or (isinstance(item, _Said) and item.role != "assistant"):
            if reply is not None:
                chat.append(reply.message())
                reply = None
            chat.append(_heard(item))
            continue
        owner = _owner(item, recorded)
        if reply is not None and not reply.includes(item, owner):
            chat.append(reply.message())
            reply = None
        reply = reply or _Reply()
        reply.owner = reply.owner or owner
        _add(reply, item, recorded, index)
    return chat if reply is None else [*chat, reply.message()]


def _heard(item: _Said | _CallOutput) -> Message:
    if isinstance(item, _CallOutput):
        return {"role": "tool", "tool_call_id": item.call_id, "content": item.output}
    return {"role": item.role, "content": item.content}


def _add(reply: _Reply, item: _Piece, recorded: RecordedResponses, index: int) -> None:
    match item:
        case _Said():
            reply.content = (reply.content or "") + item.content
        case _Call() | _CustomCall():
            function = {"name": qualified_name(item.name, item.namespace), "arguments": _arguments(item, recorded)}
            reply.calls.append({"id": item.call_id, "type": "function", "function": function})
        case _Reasoning():
            reply.reasoning = (reply.reasoning or "") + _thoughts(item, recorded, index)


def _arguments(item: _Call | _CustomCall, recorded: RecordedResponses) -> str:
    """Return the arguments of a call. Those of a custom tool are the recorded ones, if they give the same text."""
    if isinstance(item, _Call):
        return item.arguments
    sampled = recorded.arguments(item.call_id)
    return sampled if sampled is not None and custom_input(sampled) == item.input else custom_arguments(item.input)


def _owner(item: _Piece, recorded: RecordedResponses) -> str | None:
    named = _ITEM_ID.fullmatch(item.id or "")
    # The ids of another server do not tell which items belong together.
    if named and recorded.reply(named[2]):
        return named[2]
    if isinstance(item, _Call | _CustomCall):
        return recorded.caller(item.call_id)
    if isinstance(item, _Reasoning) and item.encrypted_content and recorded.reply(item.encrypted_content):
        return item.encrypted_content
    return None


def _thoughts(item: _Reasoning, recorded: RecordedResponses, index: int) -> str:
    """Return the text of a reasoning item.

    Without text, the recorded reasoning is looked up by the call in the item's id or in `encrypted_content`. Raises
    UnknownParameter if `encrypted_content` is not of this episode.
    """
    if text := "".join(thought.text for thought in item.content or ()):
        return text
    owner = _owner(item, recorded)
    if owner and (reply := recorded.reply(owner)):
        # The first piece gets all of the recorded reasoning, so the others get none.
        return "" if _number(item.id) else reply.get("reasoning_content") or ""
    if item.encrypted_content:
        raise UnknownParameter(
            f"input.{index}.encrypted_content is not of this episode: leave it out, or send content",
            param=f"input.{index}.encrypted_content",
        )
    return "".join(thought.text for thought in item.summary or ())


def _number(item_id: str | None) -> int:
    named = _ITEM_ID.fullmatch(item_id or "")
    return int(named[3] or 0) if named else 0


def _resolved(item: _Reference, recorded: RecordedResponses, index: int) -> _Piece:
    """Return the recorded item. Raises BadRequest for an unknown one.

    Tool calls can split a text into several items. The first of them gets the whole text, so the others get none.
    """
    named = _ITEM_ID.fullmatch(item.id)
    reply = recorded.reply(named[2]) if named else None
    if named is not None and reply is not None:
        kind, number = named[1], _number(item.id)
        calls = reply.get("tool_calls") or ()
        if kind == "rs" and reply.get("reasoning_content"):
            return _Reasoning(id=item.id, encrypted_content=named[2])
        if kind == "msg":
            return _Said(role="assistant", content="" if number else reply.get("content") or "", id=item.id)
        if kind in ("fc", "ctc") and number < len(calls):
            call = calls[number]
            return _Call(call_id=call["id"], id=item.id, **call["function"])
    raise BadRequest(
        f"input.{index}: no item {shown(item.id)} in this episode: send the item itself", param=f"input.{index}.id"
    )
