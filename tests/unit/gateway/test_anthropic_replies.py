"""Replies have the shapes that Anthropic's SDK declares, and a conversation comes back as it was recorded."""

from __future__ import annotations

import json
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
from dialect_turns import recorded_turn
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from tests_support import examples

from swarm.errors import (
    ContextLengthExceeded,
    EngineFailure,
    EpisodeEnded,
    LedgerUnwritable,
    NotFound,
    RolloutPaused,
    SwarmError,
    Unauthorized,
    UnknownParameter,
)
from swarm.gateway.dialects.anthropic.errors import anthropic_error, anthropic_error_response
from swarm.gateway.dialects.anthropic.messages import RecordedReplies, input_json, tool_input
from swarm.gateway.dialects.anthropic.reply import MessageStream, render_message
from swarm.gateway.dialects.anthropic.request import parse_message_request
from swarm.rollout.deduplication import CallHead, CallResult, Closed, Completion, Opened, Piece, parts_of
from swarm.rollout.model_request import SamplingDefaults
from swarm.tracker.conversation import canonical_message
from swarm.types import FinishReason, ReasoningPart, TextPart, TokenDelta, ToolCallPart

HEAD = CallHead("0f3c", 1_700_000_000, "nano")
DEFAULTS = SamplingDefaults(1.0, 1.0, 64)
TOOL = {"name": "f", "input_schema": {"type": "object"}}
USER = {"role": "user", "content": "Hello"}
SAID = {"role": "assistant", "content": "12"}
CALLS = {
    "role": "assistant",
    "content": None,
    "reasoning_content": "Two.",
    "tool_calls": [
        {"id": "call00300", "type": "function", "function": {"name": "f", "arguments": '{"a":1,  "b": "x"}'}},
        {"id": "call00301", "type": "function", "function": {"name": "f", "arguments": "{}"}},
    ],
}


@cache
def sdk():
    """Anthropic's types, which take a second to import."""
    from anthropic.lib.streaming._messages import accumulate_event
    from anthropic.types import Message, RawMessageStreamEvent
    from anthropic.types.shared import ErrorResponse

    return SimpleNamespace(
        accumulate_event=accumulate_event,
        Message=Message,
        EVENT=TypeAdapter(RawMessageStreamEvent),
        ErrorResponse=ErrorResponse,
    )


def _request(turns=(), **fields):
    body = {"model": "nano", "messages": [USER], "max_tokens": 64, **fields}
    return parse_message_request(body, DEFAULTS, RecordedReplies(turns), lambda _: False)


def _turn(request, reply, output_ids=(5, 6, 7), finish=FinishReason.STOP):
    return recorded_turn(request.call, output_ids, reply, finish, call_id=HEAD.call_id)


def _render(codec, request, turn):
    body = render_message(request, CallResult(HEAD, (Completion(0, turn),)), codec)
    json.dumps(body, allow_nan=False, ensure_ascii=False).encode()
    return sdk().Message.model_validate(body, strict=True)


def _frames(codec, request, turn, parts=None):
    """As inference publishes a turn whose reply arrives in these parts."""
    stream = MessageStream(request, HEAD, codec)
    delta = TokenDelta(turn.output_ids_T, turn.logprobs_T, turn.weight_versions_T, turn.finish_reason)
    events: list[Any] = [Opened(0, turn.index, turn.prompt_ids)]
    events += [Piece(0, (part,), delta) for part in (parts_of(turn.reply) if parts is None else parts)]
    events += [Piece(0, (), delta), Closed(Completion(0, turn))]
    return [frame for event in events for frame in stream.push(event)] + stream.finish()


def _streamed(codec, request, turn, parts=None):
    """What the SDK makes of the stream, and the names of its events."""
    message, buffers, names = None, {}, []
    for frame in _frames(codec, request, turn, parts):
        event = sdk().EVENT.validate_json(json.dumps(frame.data), strict=True)
        assert frame.event == event.type
        names.append(event.type)
        message = sdk().accumulate_event(event=event, current_snapshot=message, json_bufs=buffers)
    return message, names


def test_a_text_reply_has_the_shape_of_the_sdk(nano):
    request = _request()
    message = _render(nano, request, _turn(request, SAID))

    assert (message.id, message.type, message.role, message.model) == ("msg_0f3c", "message", "assistant", "nano")
    assert [block.to_dict() for block in message.content] == [{"type": "text", "text": "12"}]
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    assert (message.usage.input_tokens, message.usage.output_tokens) == (4, 3)
    assert (message.usage.cache_creation_input_tokens, message.usage.cache_read_input_tokens) == (0, 0)


def test_reasoning_and_calls_are_blocks_of_their_own(nano):
    request = _request(tools=[TOOL])
    message = _render(nano, request, _turn(request, CALLS))

    assert [block.to_dict() for block in message.content] == [
        {"type": "thinking", "thinking": "Two.", "signature": "0f3c"},
        {"type": "tool_use", "id": "call00300", "name": "f", "input": {"a": 1, "b": "x"}},
        {"type": "tool_use", "id": "call00301", "name": "f", "input": {}},
    ]
    assert message.stop_reason == "tool_use"


@pytest.mark.parametrize("reply", [SAID, CALLS, {**CALLS, "content": "Look:"}, {**SAID, "content": ""}])
def test_a_stream_says_the_same_as_one_body(nano, reply):
    request = _request(tools=[TOOL])
    turn = _turn(request, reply)

    streamed, names = _streamed(nano, request, turn)

    assert streamed.to_dict(exclude_none=True) == _render(nano, request, turn).to_dict(exclude_none=True)
    assert (names[0], names[-2:]) == ("message_start", ["message_delta", "message_stop"])


def test_blocks_follow_the_order_in_which_parts_came(nano):
    request = _request(tools=[TOOL])
    parts = [
        *(ReasoningPart("T"), ReasoningPart("wo"), TextPart("A"), TextPart("B")),
        *(ToolCallPart("call00300", "f", "{}"), ToolCallPart("call00301", "f", "{}"), TextPart("C")),
    ]

    message, names = _streamed(nano, request, _turn(request, CALLS), parts)

    assert [block.type for block in message.content] == ["thinking", "text", "tool_use", "tool_use", "text"]
    assert (message.content[0].thinking, message.content[0].signature) == ("Two", "0f3c")
    assert (message.content[1].text, message.content[4].text) == ("AB", "C")
    assert names.count("content_block_start") == names.count("content_block_stop") == 5


def test_thinking_that_is_not_to_be_shown_leaves_its_signature(nano):
    request = _request(thinking={"type": "adaptive", "display": "omitted"})
    turn = _turn(request, {**SAID, "reasoning_content": "Two."})
    shown = {"type": "thinking", "thinking": "", "signature": "0f3c"}

    assert _render(nano, request, turn).content[0].to_dict() == shown
    assert _streamed(nano, request, turn)[0].content[0].to_dict() == shown


@pytest.mark.parametrize(
    ("fields", "text", "finish", "expected"),
    [
        ({}, "12", FinishReason.LENGTH, ("model_context_window_exceeded", None)),
        ({"max_tokens": 1}, "12", FinishReason.LENGTH, ("max_tokens", None)),
        ({"stop_sequences": ["3", "2"]}, "12", FinishReason.STOP, ("stop_sequence", "2")),
        ({"stop_sequences": ["12", "1"]}, "12", FinishReason.STOP, ("stop_sequence", "1")),
        ({"stop_sequences": ["3"]}, "12<|im_end|>", FinishReason.STOP, ("end_turn", None)),
        ({"stop_sequences": ["<|im_end|>"]}, "12<|im_end|>", FinishReason.STOP, ("end_turn", None)),
    ],
)
def test_stop_reasons(nano, fields, text, finish, expected):
    request = _request(**fields)
    turn = _turn(request, SAID, nano._tokenizer.encode(text, add_special_tokens=False), finish)

    message = _render(nano, request, turn)

    assert (message.stop_reason, message.stop_sequence) == expected
    streamed, _ = _streamed(nano, request, turn)
    assert streamed.to_dict(exclude_none=True) == message.to_dict(exclude_none=True)


def test_an_aborted_turn_is_no_message(nano):
    request = _request()
    with pytest.raises(EngineFailure):
        _render(nano, request, _turn(request, SAID, finish=FinishReason.ABORT))


def test_pings_are_events(nano):
    assert MessageStream(_request(), HEAD, nano).ping() == b'event: ping\ndata: {"type":"ping"}\n\n'


def test_a_broken_stream_ends_with_an_error_event(nano):
    (frame,) = MessageStream(_request(), HEAD, nano).fail(RolloutPaused("weights are changing"))

    assert frame.event == "error"
    error = sdk().ErrorResponse.model_validate(frame.data, strict=True).error
    assert (error.type, error.message) == ("overloaded_error", "weights are changing")


@pytest.mark.parametrize(
    ("error", "status", "kind", "headers"),
    [
        (ContextLengthExceeded("5 tokens"), 400, "invalid_request_error", {}),
        (Unauthorized("no key"), 401, "authentication_error", {"www-authenticate": "Bearer"}),
        (NotFound("no model"), 404, "not_found_error", {}),
        (EpisodeEnded("over"), 409, "invalid_request_error", {"x-should-retry": "false"}),
        (EngineFailure("broke"), 500, "api_error", {}),
        (SwarmError("fault"), 500, "api_error", {}),
        (RolloutPaused("later", retry_after_s=7), 529, "overloaded_error", {"retry-after": "7"}),
        (LedgerUnwritable("disk full"), 529, "overloaded_error", {"retry-after": "1"}),
    ],
)
def test_errors_have_the_shape_of_the_sdk(error, status, kind, headers):
    response = anthropic_error_response(error, "req-1")

    body = sdk().ErrorResponse.model_validate_json(bytes(response.body), strict=True)
    assert (response.status_code, body.error.type, body.request_id) == (status, kind, "req-1")
    assert body.error.message.endswith(error.message)
    assert {name: response.headers[name] for name in headers} == headers
    assert body.error.message.startswith("prompt is too long") == isinstance(error, ContextLengthExceeded)


def test_a_refused_thread_is_told_so_that_the_tool_runner_goes_on_without():
    with pytest.raises(UnknownParameter) as refusal:
        _request(thread={"type": "create"})

    error = sdk().ErrorResponse.model_validate(anthropic_error(refusal.value), strict=True).error
    assert (error.type, error.details["error_code"]) == ("invalid_request_error", "thread_unsupported_request")


@pytest.mark.parametrize(
    "arguments",
    ["[1]", "{", '{"a": 1e999}', '{"a": "\\ud800"}', '{"a": NaN}', '{"a": ' + "[" * 300 + "]" * 300 + "}", '"{}"'],
)
def test_arguments_that_clients_could_not_read_are_shown_as_text(arguments):
    assert tool_input(arguments) == {"INVALID_JSON": arguments}
    assert json.loads(input_json(arguments)) == {"INVALID_JSON": arguments}


WRITTEN = '{"x": 1.0, "n": 12345678901234567890, "t": [true, null, "é"],\t"x": 2.50}'


@pytest.mark.parametrize(
    ("given", "is_restored"),
    [
        ({"x": 2.5, "n": 12345678901234567890, "t": [True, None, "é"]}, True),
        # What a client in JavaScript makes of it.
        ({"x": 2.5, "n": 12345678901234567000, "t": [True, None, "é"]}, True),
        ({"t": [True, None, "é"], "n": 1.2345678901234567e19, "x": 2.5}, True),
        ({"x": 2.5, "n": 12345678901234567890, "t": [1, None, "é"]}, False),
        ({"x": 2.5, "n": 12345678901234567890, "t": [True, None]}, False),
        ({"x": 2.5, "n": 12345678901234567890}, False),
        ({"x": "2.5", "n": 12345678901234567890, "t": [True, None, "é"]}, False),
    ],
)
def test_a_returned_input_is_the_text_that_the_model_wrote(given, is_restored):
    call = {"id": "call00300", "type": "function", "function": {"name": "f", "arguments": WRITTEN}}
    replies = RecordedReplies([_turn(_request(), {**CALLS, "tool_calls": [call]})])

    edited = json.dumps(given, ensure_ascii=False)
    assert replies.arguments("call00300", "f", given, {}) == (WRITTEN if is_restored else edited)
    assert replies.arguments("call00300", "g", given, {}) == edited
    assert replies.arguments("call00399", "f", given, {}) == edited


@pytest.mark.parametrize(("given", "is_restored"), [(False, True), (True, False), (0, False)])
def test_a_default_that_a_client_adds_leaves_the_text_that_the_model_wrote(given, is_restored):
    """As Claude Code does with the parameter `replace_all` of its tool Edit."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}, "all": {"type": "boolean", "default": False}}}
    tools = [{"name": "f", "input_schema": schema}]
    call = {"id": "call00300", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    turn = _turn(_request(tools=tools), {"role": "assistant", "content": None, "tool_calls": [call]})
    sent = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": [_use({"all": given, "a": 1})]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call00300", "content": "done"}]},
    ]
    [prompt] = _request([turn], messages=sent, tools=tools).call.prompts
    [back] = prompt.messages[1]["tool_calls"]
    assert (back["function"]["arguments"] == '{"a":1}') is is_restored


def _use(given):
    return {"type": "tool_use", "id": "call00300", "name": "f", "input": given}


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def _arguments(draw):
    """JSON objects as models write them: any spacing, escapes or not, some with a key twice."""
    value = draw(st.dictionaries(st.text(max_size=3), _JSON, max_size=3))
    separators = draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", " :  ")]))
    text = json.dumps(value, separators=separators, ensure_ascii=draw(st.booleans()))
    return text[:-1] + ',"":1e0}' if value and draw(st.booleans()) else text


@st.composite
def _parts(draw):
    """Parts of one reply as they may come from the codec; calls are numbered by their place."""
    text = st.text(min_size=1, max_size=5)
    kinds = st.one_of(
        st.builds(TextPart, text), st.builds(ReasoningPart, text), st.builds(ToolCallPart, text, text, _arguments())
    )
    parts = draw(st.lists(kinds, max_size=6))
    return [
        ToolCallPart(f"call003{number:02}", part.name, part.arguments) if isinstance(part, ToolCallPart) else part
        for number, part in enumerate(parts)
    ]


def _recorded(parts):
    """The reply message that the codec keeps of these parts."""
    content = "".join(part.text for part in parts if isinstance(part, TextPart))
    reasoning = "".join(part.text for part in parts if isinstance(part, ReasoningPart))
    calls = [
        {"id": part.call_id, "type": "function", "function": {"name": part.name, "arguments": part.arguments}}
        for part in parts
        if isinstance(part, ToolCallPart)
    ]
    reply: dict[str, Any] = {"role": "assistant", "content": content or (None if calls else "")}
    return reply | ({"reasoning_content": reasoning} if reasoning else {}) | ({"tool_calls": calls} if calls else {})


@settings(max_examples=examples(150), deadline=None)
@given(parts=_parts(), display=st.sampled_from(["summarized", "omitted"]), is_streamed=st.booleans())
def test_a_returned_conversation_is_the_recorded_one(nano, parts, display, is_streamed):
    request = _request(tools=[TOOL], thinking={"type": "adaptive", "display": display})
    turn = _turn(request, _recorded(parts))

    message = _streamed(nano, request, turn, parts)[0] if is_streamed else _render(nano, request, turn)
    content = json.loads(message.to_json())["content"]
    returned = _request([turn], messages=[USER, {"role": "assistant", "content": content}, USER], tools=[TOOL])

    (conversation,) = returned.call.prompts
    assert list(conversation.messages[:-1]) == [canonical_message(each) for each in (*turn.messages, turn.reply)]
    assert returned.ignored_fields == ()
