"""Replies have the shapes that OpenAI's SDK declares, and a conversation comes back as it was recorded."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from dialect_turns import recorded_turn
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from swarm.errors import BadRequest, EngineFailure
from swarm.gateway.dialects.responses.items import RecordedResponses, ResponseId
from swarm.gateway.dialects.responses.reply import ResponseStream, render_response
from swarm.gateway.dialects.responses.request import parse_response_request
from swarm.rollout.deduplication import CallHead, CallResult, Closed, Completion, Opened, Piece, parts_of
from swarm.rollout.model_request import SamplingDefaults
from swarm.tracker.conversation import canonical_message
from swarm.types import FinishReason, ReasoningPart, TextPart, TokenDelta, ToolCallPart, Turn

DEFAULTS = SamplingDefaults(1.0, 1.0, 64)
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}
SAID = {"role": "assistant", "content": "12"}
LOGPROBS = ["message.output_text.logprobs"]
ENCRYPTED = ["reasoning.encrypted_content"]


def _tool_call(call_id, name="f", arguments='{"a":1,  "b": "x"}'):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


CALLS = {
    "role": "assistant",
    "content": None,
    "reasoning_content": "Two.",
    "tool_calls": [_tool_call("call00300"), _tool_call("call00301", arguments="{}")],
}
REPLIES = [
    SAID,
    CALLS,
    {**CALLS, "content": "Look:"},
    {**SAID, "content": ""},
    {**SAID, "content": "", "reasoning_content": "Hm."},
    {**SAID, "reasoning_content": "Hm."},
]


@cache
def _event_type():
    """The type of events in the SDK, whose import takes most of a second."""
    from openai.types.responses import ResponseStreamEvent

    return TypeAdapter(ResponseStreamEvent)


def _head(number=0):
    return CallHead(f"{number:032x}", 1_700_000_000, "nano")


def _request(turns=(), **fields):
    body = {"model": "nano", "input": "Hello", **fields}
    return parse_response_request(body, DEFAULTS, RecordedResponses(turns), lambda _: True)


def _turn(request, reply, output_ids=(5, 6, 7), finish=FinishReason.STOP, number=0):
    named = {"index": number, "call_id": _head(number).call_id}
    return recorded_turn(request.call, output_ids, reply, finish, first_logprob=-0.5, step=-1.0, **named)


def _render(codec, request, turn):
    from openai.types.responses import Response

    result = CallResult(_head(turn.index), (Completion(0, turn),))
    body = json.dumps(render_response(request, result, codec), allow_nan=False)
    return Response.model_validate_json(body, strict=True)


def _frames(codec, request, turn, pieces=None):
    """As inference publishes a turn whose reply arrives in these parts, each with its tokens."""
    stream = ResponseStream(request, _head(turn.index), codec)
    if pieces is None:
        pieces = [(part, ()) for part in parts_of(turn.reply)]
    events: list[Any] = [Opened(0, turn.index, turn.prompt_ids)]
    for part, ids in pieces:
        delta = TokenDelta(tuple(ids), tuple(-0.5 for _ in ids), tuple(0 for _ in ids))
        events.append(Piece(0, () if part is None else (part,), delta))
    return [frame for event in [*events, Closed(Completion(0, turn))] for frame in stream.push(event)] + stream.finish()


def _events(codec, request, turn, pieces=None):
    frames = _frames(codec, request, turn, pieces)
    events = [_event_type().validate_json(json.dumps(frame.data), strict=True) for frame in frames]
    assert [event.type for event in events] == [frame.event for frame in frames]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    return events


def test_a_text_reply_has_the_shape_of_the_sdk(nano):
    request = _request(metadata={"a": "b"}, instructions="Be brief.", tools=[TOOL], temperature=0.5, user="u")
    response = _render(nano, request, _turn(request, SAID))

    assert (response.id, response.status, response.model) == (f"resp_{_head().call_id}i", "completed", "nano")
    assert (response.output_text, response.instructions) == ("12", "Be brief.")
    assert (response.metadata, response.temperature, response.user) == ({"a": "b"}, 0.5, "u")
    assert (response.created_at, response.completed_at, response.error) == (1_700_000_000, 1, None)
    assert response.tools[0].to_dict() == {**TOOL, "description": None}
    assert (response.usage.input_tokens, response.usage.output_tokens, response.usage.total_tokens) == (4, 3, 7)


def test_reasoning_text_and_calls_are_items_of_their_own(nano):
    request = _request(tools=[TOOL])
    response = _render(nano, request, _turn(request, {**CALLS, "content": "Look:"}))
    reasoning, message, first, second = response.output

    assert (reasoning.type, reasoning.content[0].text, reasoning.summary) == ("reasoning", "Two.", [])
    assert (message.type, message.content[0].text, message.status) == ("message", "Look:", "completed")
    assert (first.call_id, first.name, first.arguments) == ("call00300", "f", '{"a":1,  "b": "x"}')
    assert (second.call_id, second.arguments, second.status) == ("call00301", "{}", "completed")
    assert len({item.id for item in response.output}) == 4


@pytest.mark.parametrize("reply", REPLIES)
@pytest.mark.parametrize("finish", [FinishReason.STOP, FinishReason.LENGTH])
def test_a_stream_says_the_same_as_one_body(nano, reply, finish):
    request = _request(tools=[TOOL], include=ENCRYPTED)
    turn = _turn(request, reply, finish=finish)
    body = _render(nano, request, turn)
    events = _events(nano, request, turn)

    assert events[-1].response.to_dict() == body.to_dict()
    assert events[-1].type == f"response.{body.status}"
    done = [event.item.to_dict() for event in events if event.type == "response.output_item.done"]
    assert done == [item.to_dict() for item in body.output]


def test_a_reply_that_was_cut_off_is_incomplete(nano):
    request = _request(max_output_tokens=3)
    response = _render(nano, request, _turn(request, SAID, finish=FinishReason.LENGTH))

    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert response.output[0].status == "incomplete"


def test_an_aborted_turn_is_no_response(nano):
    request = _request()
    with pytest.raises(EngineFailure):
        _render(nano, request, _turn(request, SAID, finish=FinishReason.ABORT))


def test_events_come_in_the_documented_order(nano):
    request = _request(tools=[TOOL])
    pieces = [(part, ()) for part in (ReasoningPart("T"), TextPart("A"), TextPart("B"), ToolCallPart("c", "f", "{}"))]
    events = _events(nano, request, _turn(request, CALLS), pieces)

    assert [event.type.removeprefix("response.") for event in events] == [
        *("created", "in_progress"),
        *("output_item.added", "content_part.added", "reasoning_text.delta"),
        *("reasoning_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"),
        "completed",
    ]
    placed = [event for event in events if hasattr(event, "output_index")]
    assert [event.output_index for event in placed] == [0] * 6 + [1] * 7 + [2] * 4


@pytest.mark.parametrize("reply", REPLIES)
def test_the_sdk_s_own_helper_puts_the_stream_together(nano, reply):
    from openai._types import omit
    from openai.lib.streaming.responses._responses import ResponseStreamState

    request = _request(tools=[TOOL])
    turn = _turn(request, reply)
    state = ResponseStreamState(input_tools=omit, text_format=omit)
    for event in _events(nano, request, turn):
        state.handle_event(event)

    final = state._completed_response
    assert final.output_text == (reply.get("content") or "")
    items = [item.to_dict() for item in final.output]
    for item in items:
        item.pop("parsed_arguments", None)
        for part in item.get("content") or ():
            part.pop("parsed", None)
    assert items == [item.to_dict() for item in _render(nano, request, turn).output]


def test_text_behind_a_call_is_an_item_of_its_own_and_comes_back_once(nano):
    request = _request(tools=[TOOL])
    reply = {"role": "assistant", "content": "AB", "tool_calls": [_tool_call("call00000")]}
    turn = _turn(request, reply)
    pieces = [
        (part, ()) for part in (TextPart("A"), ToolCallPart("call00000", "f", '{"a":1,  "b": "x"}'), TextPart("B"))
    ]
    events = _events(nano, request, turn, pieces)
    items = [event.item for event in events if event.type == "response.output_item.done"]

    assert [item.type for item in items] == ["message", "function_call", "message"]
    for back in ([item.to_dict() for item in items], [{"type": "item_reference", "id": item.id} for item in items]):
        (conversation,) = _request([turn], input=back).call.prompts
        assert conversation.messages == (canonical_message(reply),)


@pytest.mark.parametrize(
    "arguments", ['{"input":"*** Begin"}', '{"input": "*** Begin", "a": 1}', '{"patch": "*** Begin"}']
)
def test_calls_of_namespaces_and_custom_tools_have_the_form_that_the_client_expects(nano, arguments):
    patch = {"type": "custom", "name": "patch", "format": {"type": "text"}}
    tools = [{"type": "namespace", "name": "crm", "description": "", "tools": [TOOL, patch]}, patch]
    request = _request(tools=tools)
    calls = [_tool_call(f"call{number}", *call) for number, call in enumerate([("crm.f",), ("crm.patch", arguments)])]
    reply = {"role": "assistant", "content": None, "tool_calls": [*calls, _tool_call("call2", "patch", arguments)]}
    turn = _turn(request, reply)
    whole = _render(nano, request, turn).output
    events = _events(nano, request, turn)
    streamed = [event.item for event in events if event.type == "response.output_item.done"]

    assert streamed == whole
    assert [item.type for item in whole] == ["function_call", "custom_tool_call", "custom_tool_call"]
    assert [(item.namespace, item.name) for item in whole] == [("crm", "f"), ("crm", "patch"), (None, "patch")]
    text = arguments if "patch" in arguments else "*** Begin"
    assert [whole[1].input, whole[2].input] == [text, text]
    assert [event.input for event in events if event.type == "response.custom_tool_call_input.done"] == [text, text]
    for back in ([item.to_dict() for item in whole], [{"type": "item_reference", "id": item.id} for item in whole]):
        (conversation,) = _request([turn], input=back, tools=tools).call.prompts
        assert conversation.messages == (canonical_message(reply),)


def test_a_stream_that_broke_off_says_so(nano):
    stream = ResponseStream(_request(), _head(), nano)
    stream.push(Opened(0, 0, (1,)))
    failed, error = (frame.data for frame in stream.fail(EngineFailure("it broke")))

    event = _event_type().validate_json(json.dumps(failed), strict=True)
    assert (event.response.status, event.response.error.message) == ("failed", "it broke")
    assert _event_type().validate_json(json.dumps(error), strict=True).code == "engine_failure"
    assert error["error"]["message"] == "it broke"


def test_logprobs_are_those_of_the_text_and_its_stop_token(nano):
    ids = nano.encode_text("ABC<|im_end|>")
    request = _request(include=LOGPROBS)
    turn = _turn(request, {"role": "assistant", "content": "BC", "reasoning_content": "A"}, ids)
    (part,) = _render(nano, request, turn).output[1].content

    assert [(row.token, row.logprob) for row in part.logprobs] == [("B", -1.5), ("C", -2.5), ("<|im_end|>", -3.5)]
    assert part.logprobs[0].bytes == [66]
    assert _render(nano, request, turn).usage.output_tokens_details.reasoning_tokens == 1

    pieces = [(ReasoningPart("A"), ids[:1]), (TextPart("B"), ids[1:2]), (TextPart("C"), ids[2:3]), (None, ids[3:])]
    events = _events(nano, request, turn, pieces)
    told = [row.token for event in events if event.type == "response.output_text.delta" for row in event.logprobs]
    (done,) = (event for event in events if event.type == "response.output_text.done")
    assert told == [row.token for row in done.logprobs] == ["B", "C", "<|im_end|>"]


@pytest.mark.parametrize("case", ["unstored", "aborted", "elsewhere"])
def test_a_response_that_is_not_there_cannot_be_gone_on_from(nano, case):
    request = _request(store=case != "unstored")
    turn = _turn(request, SAID)
    response_id = _render(nano, request, turn).id
    turns = [] if case == "elsewhere" else [turn]
    if case == "aborted":
        turns = [_turn(request, SAID, finish=FinishReason.ABORT)]
    with pytest.raises(BadRequest) as refusal:
        _request(turns, previous_response_id=response_id)
    assert refusal.value.param == "previous_response_id"


IDS = st.sampled_from("abcdef0123456789")


@given(st.text(IDS, min_size=1), st.booleans(), st.booleans())
def test_ids_of_responses_are_read_as_they_were_written(call_id, has_instructions, is_stored):
    named = ResponseId(call_id, has_instructions, is_stored)
    assert ResponseId.read(str(named)) == named


TEXTS = st.text(min_size=1, max_size=5)
CALL_NAMES = st.sampled_from(["f", "g"])
ARGUMENTS = st.sampled_from(["{}", '{"a":1,  "b": "x"}', '{"a": 2.0}'])


@st.composite
def _replies(draw, number):
    """What a turn of this number said, as the tracker records it."""
    content = draw(st.one_of(st.just(""), TEXTS))
    reply = {"role": "assistant", "content": content}
    if reasoning := draw(st.one_of(st.none(), TEXTS)):
        reply["reasoning_content"] = reasoning
    calls = draw(st.lists(st.tuples(CALL_NAMES, ARGUMENTS), max_size=3))
    if calls:
        reply["content"] = content or None
        reply["tool_calls"] = [_tool_call(f"call{number:03}{place:02}", *call) for place, call in enumerate(calls)]
    return reply


def _as_sent(item):
    return item.to_dict()


def _as_dumped(item):
    return item.model_dump(exclude_none=True, exclude={"status"})


def _by_reference(item):
    return {"type": "item_reference", "id": item.id}


def _encrypted(item):
    """As Codex sends it: neither ids nor the text of reasoning."""
    fields = item.to_dict(exclude_none=True)
    fields.pop("id")
    if item.type == "reasoning":
        fields.pop("content")
    return fields


@settings(max_examples=25, deadline=None)
@given(st.data())
@pytest.mark.parametrize("sent", [_as_sent, _as_dumped, _by_reference, _encrypted])
def test_items_that_come_back_are_the_recorded_conversation(nano, sent, data):
    """Whatever the reply, and even where nobody said anything in between."""
    turns: list[Turn] = []
    history: list[Any] = [{"role": "user", "content": "Hello"}]
    for number in range(data.draw(st.integers(1, 3))):
        request = _request(turns, input=history, tools=[TOOL], include=ENCRYPTED)
        (conversation,) = request.call.prompts
        if turns:
            recorded = [*turns[-1].messages, canonical_message(turns[-1].reply)]
            assert list(conversation.messages[: len(recorded)]) == recorded
        turn = _turn(request, data.draw(_replies(number)), number=number)
        turns.append(turn)
        response = _render(nano, request, turn)
        history += [sent(item) for item in response.output]
        for call in turn.reply.get("tool_calls") or ():
            history.append({"type": "function_call_output", "call_id": call["id"], "output": "3"})
        if sent is _encrypted or data.draw(st.booleans()):
            history.append({"role": "user", "content": "And?"})

        kept = _request(turns, previous_response_id=response.id, input="And?").call.prompts[0]
        assert list(kept.messages) == [
            *turn.messages,
            canonical_message(turn.reply),
            {"role": "user", "content": "And?"},
        ]
