"""Completions and chunks have the shapes the openai SDK declares, and say the same however they are streamed."""

from __future__ import annotations

import pytest
from dialect_turns import published, recorded_turn
from hypothesis import given, settings
from hypothesis import strategies as st
from tests_support import examples

from swarm.errors import EngineFailure
from swarm.gateway.dialects.chat.reply import ChunkStream, render_completion
from swarm.gateway.dialects.chat.request import parse_chat_request
from swarm.rollout.deduplication import CallHead, CallResult, Completion
from swarm.rollout.model_request import SamplingDefaults
from swarm.types import FinishReason

CALCULATOR = {"type": "function", "function": {"name": "calculator", "parameters": {"type": "object"}}}
CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "3*4"}}\n</tool_call>'
HEAD = CallHead("1", 1_700_000_000, "nano")


def _request(**fields):
    body = {"model": "nano", "messages": [{"role": "user", "content": "What is 3*4?"}], **fields}
    return parse_chat_request(body, SamplingDefaults(1.0, 1.0, 64))


def _sampled(codec, text):
    return tuple(codec._tokenizer.encode(text, add_special_tokens=False))


def _turn(codec, request, output_ids, finish=FinishReason.STOP, choice=0):
    (conversation,) = request.call.prompts
    reply = _reply_stream(codec, request)
    reply.push(output_ids)
    reply.finish()
    prompt_ids = codec.render(conversation.messages, conversation.tools)
    return recorded_turn(request.call, output_ids, reply.message, finish, prompt_ids=prompt_ids, choice=choice)


def _reply_stream(codec, request):
    (conversation,) = request.call.prompts
    stop = request.call.params.stop
    return codec.reply_stream(conversation.tools, choice=request.call.tool_choice, turn_index=3, stop=stop)


def _render(codec, request, *turns, top_logprobs=None):
    completions = tuple(Completion(number, turn, top_logprobs) for number, turn in enumerate(turns))
    return render_completion(request, CallResult(HEAD, completions), codec)


def _whole(body):
    from openai.types.chat import ChatCompletion

    return ChatCompletion.model_validate(body, strict=True)


def _completion(codec, request, output_ids, finish=FinishReason.STOP):
    body = _render(codec, request, _turn(codec, request, output_ids, finish))
    return _whole(body)


def _chunks(codec, request, events):
    from openai.types.chat import ChatCompletionChunk

    stream = ChunkStream(request, HEAD, codec)
    frames = [frame for event in events for frame in stream.push(event)] + stream.finish()
    assert frames.pop().data == "[DONE]"
    return [ChatCompletionChunk.model_validate(frame.data, strict=True) for frame in frames]


def _stream(codec, request, turn, widths=()):
    return _chunks(codec, request, published(turn, _reply_stream(codec, request), widths))


def test_a_text_reply_has_the_shape_of_the_sdk(nano):
    completion = _completion(nano, _request(), _sampled(nano, "12<|im_end|>"))

    (choice,) = completion.choices
    assert (completion.id, completion.object, completion.model) == ("chatcmpl-1", "chat.completion", "nano")
    assert (choice.message.role, choice.message.content, choice.message.tool_calls) == ("assistant", "12", None)
    assert choice.finish_reason == "stop"
    assert choice.logprobs is None
    assert completion.usage.completion_tokens == len(_sampled(nano, "12<|im_end|>"))
    assert completion.usage.total_tokens == completion.usage.prompt_tokens + completion.usage.completion_tokens


def test_a_tool_call_has_the_shape_of_the_sdk(nano):
    completion = _completion(nano, _request(tools=[CALCULATOR]), _sampled(nano, f"{CALL}<|im_end|>"))

    (choice,) = completion.choices
    (call,) = choice.message.tool_calls
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert (call.id, call.type) == ("call00300", "function")
    assert (call.function.name, call.function.arguments) == ("calculator", '{"expression": "3*4"}')


def test_logprobs_cover_every_sampled_token(nano):
    output = _sampled(nano, "12<|im_end|>")

    entries = _completion(nano, _request(logprobs=True), output).choices[0].logprobs.content

    assert [entry.token for entry in entries] == ["1", "2", "<|im_end|>"]
    assert [entry.logprob for entry in entries] == [0.0, -0.25, -0.5]
    assert [entry.bytes for entry in entries] == [list(entry.token.encode()) for entry in entries]


def test_half_a_character_has_no_bytes(nano):
    output = _sampled(nano, "é")

    entries = _completion(nano, _request(logprobs=True), output).choices[0].logprobs.content

    assert [entry.bytes for entry in entries] == [None, None]


def test_token_ids_are_returned_to_those_who_ask(nano):
    output = _sampled(nano, "12<|im_end|>")
    request = _request(return_token_ids=True)

    asked, silent = _completion(nano, request, output), _completion(nano, _request(), output)

    assert asked.model_extra["prompt_token_ids"] == list(nano.render(request.call.prompts[0].messages))
    assert asked.choices[0].model_extra["token_ids"] == list(output)
    assert not silent.model_extra and not silent.choices[0].model_extra


def test_an_aborted_turn_has_no_reply(nano):
    request = _request()
    turn = _turn(nano, request, _sampled(nano, "1"), FinishReason.ABORT)

    with pytest.raises(EngineFailure):
        _render(nano, request, turn)
    with pytest.raises(EngineFailure):
        _stream(nano, request, turn)


def test_usage_comes_last_in_a_chunk_without_choices_if_asked(nano):
    request = _request(stream=True, stream_options={"include_usage": True})
    turn = _turn(nano, request, _sampled(nano, "12<|im_end|>"))

    chunks = _stream(nano, request, turn)

    assert chunks[-1].choices == []
    assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (len(turn.prompt_ids), 3)
    assert all(chunk.choices for chunk in chunks[:-1])


def test_a_call_is_streamed_whole_and_the_content_before_it_at_once(nano):
    request = _request(stream=True, tools=[CALCULATOR])
    turn = _turn(nano, request, _sampled(nano, f"See:\n{CALL}\n{CALL}<|im_end|>"))

    chunks = _stream(nano, request, turn, [1] * len(turn.output_ids_T))

    deltas = [chunk.choices[0].delta for chunk in chunks]
    calls = [call for delta in deltas for call in delta.tool_calls or ()]
    assert "".join(delta.content or "" for delta in deltas) == "See:"
    assert deltas[1].content == "S"
    assert [(call.index, call.id, call.function.name) for call in calls] == [
        (0, "call00300", "calculator"),
        (1, "call00301", "calculator"),
    ]
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_choices_are_told_apart_and_their_prompt_is_counted_once(nano):
    request = _request(n=2, stream_options={"include_usage": True}, stream=True)
    turns = [_turn(nano, request, _sampled(nano, f"{text}<|im_end|>"), choice=n) for n, text in enumerate(("1", "22"))]
    body = _whole(_render(nano, request, *turns))

    first, second = (list(published(turn, _reply_stream(nano, request), [1])) for turn in turns)
    chunks = _chunks(nano, request, [first[0], second[0], *second[1:], *first[1:]])

    assert [(choice.index, choice.message.content) for choice in body.choices] == [(0, "1"), (1, "22")]
    said = {0: "", 1: ""}
    for chunk in chunks[:-1]:
        said[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert said == {0: "1", 1: "22"}
    assert body.usage == chunks[-1].usage
    assert (body.usage.prompt_tokens, body.usage.completion_tokens) == (len(turns[0].prompt_ids), 5)


def test_the_likeliest_tokens_stand_beside_the_sampled_ones(nano):
    (one,) = _sampled(nano, "1")
    request = _request(logprobs=True, top_logprobs=2)
    turn = _turn(nano, request, [one], FinishReason.LENGTH)
    body = _render(nano, request, turn, top_logprobs=(((one, -0.5), (2, -1.5)),))

    (entry,) = _whole(body).choices[0].logprobs.content

    assert [(top.token, top.logprob) for top in entry.top_logprobs] == [("1", -0.5), (nano.raw_text([2]), -1.5)]


def test_a_stream_that_breaks_off_ends_with_an_error_event(nano):
    (frame,) = ChunkStream(_request(stream=True), HEAD, nano).fail(EngineFailure("broke"))

    assert frame.data["error"]["message"] == "broke"


TEXTS = st.lists(
    st.sampled_from(["12", "é", "🙂", CALL, "<tool_call>", "</tool_call>", "\n", "END", "EN", "<|im_end|>", " text "]),
    max_size=8,
).map("".join)


@settings(max_examples=examples(150), deadline=None)
@given(
    text=TEXTS,
    noise=st.lists(st.integers(0, 383), max_size=4),
    widths=st.lists(st.integers(0, 6), max_size=30),
    finish=st.sampled_from([FinishReason.STOP, FinishReason.LENGTH]),
    tools=st.sampled_from([None, [CALCULATOR]]),
    stop=st.sampled_from([None, "END", ["ND", "EN"]]),
)
def test_a_stream_adds_up_to_the_completion(nano, text, noise, widths, finish, tools, stop):
    request = _request(stream=True, tools=tools, stop=stop, logprobs=True, return_token_ids=True)
    turn = _turn(nano, request, [*_sampled(nano, text), *noise], finish)
    completion = _whole(_render(nano, request, turn))

    chunks = _stream(nano, request, turn, widths)

    (choice,) = completion.choices
    deltas = [chunk.choices[0].delta for chunk in chunks]
    calls = [call for delta in deltas for call in delta.tool_calls or ()]
    assert "".join(delta.content or "" for delta in deltas) == (choice.message.content or "")
    assert [(call.id, call.function.arguments) for call in calls] == [
        (call.id, call.function.arguments) for call in choice.message.tool_calls or ()
    ]
    assert chunks[-1].choices[0].finish_reason == choice.finish_reason
    logprobs = [chunk.choices[0].logprobs for chunk in chunks]
    assert [entry for part in logprobs if part for entry in part.content] == choice.logprobs.content
    ids = [token for chunk in chunks for token in chunk.choices[0].model_extra["token_ids"]]
    assert ids == list(turn.output_ids_T)
    assert chunks[0].model_extra["prompt_token_ids"] == list(turn.prompt_ids)
