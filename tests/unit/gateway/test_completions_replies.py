"""Text completions and their chunks have the shape the openai SDK declares, and say the same however they are cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from dialect_turns import published, recorded_turn
from hypothesis import given, settings
from hypothesis import strategies as st
from tests_support import examples

from swarm.errors import EngineFailure
from swarm.gateway.dialects.completions.reply import TextCompletionStream, render_text_completion
from swarm.gateway.dialects.completions.request import CompletionBody, parse_completion_request
from swarm.gateway.dialects.fields import CheckedCall
from swarm.rollout.deduplication import CallEvent, CallHead, CallResult, Completion
from swarm.rollout.model_request import SamplingDefaults
from swarm.tracker.codec import Codec
from swarm.types import FinishReason, Turn

Checked = CheckedCall[CompletionBody]
HEAD = CallHead("1", 1_700_000_000, "nano")
END = "<|im_end|>"


def request(**fields: Any) -> Checked:
    return parse_completion_request(
        {"model": "nano", "prompt": "Once", **fields}, SamplingDefaults(1.0, 1.0, 64, stop_token_ids=())
    )


def reply_of(codec: Codec, asked: Checked) -> Any:
    return codec.raw_reply_stream(turn_index=3, stop=asked.call.params.stop)


def turn(
    codec: Codec,
    asked: Checked,
    text: str,
    finish: FinishReason = FinishReason.STOP,
    choice: int = 0,
) -> Turn:
    prompt = asked.call.prompts[choice // asked.call.choices]
    output_ids = codec.encode_text(text)
    reply = reply_of(codec, asked)
    reply.push(output_ids)
    reply.finish()
    prompt_ids = prompt.token_ids or codec.encode_text(prompt.text)
    return recorded_turn(asked.call, output_ids, reply.message, finish, prompt_ids=prompt_ids, choice=choice)


def rendered(codec: Codec, asked: Checked, *turns: Turn, top: Any = None) -> Any:
    from openai.types import Completion as SdkCompletion

    completions = tuple(Completion(each.choice, each, top) for each in turns)
    body = render_text_completion(asked, CallResult(HEAD, completions), codec)
    return SdkCompletion.model_validate(body, strict=True)


def events(codec: Codec, asked: Checked, said: Turn, cuts: Sequence[int] = (), top: Any = None) -> Iterator[CallEvent]:
    return published(said, reply_of(codec, asked), cuts, top)


def streamed(codec: Codec, asked: Checked, published: Iterator[CallEvent]) -> list[Any]:
    from openai.types import Completion as SdkCompletion

    stream = TextCompletionStream(asked, HEAD, codec)
    frames = [frame for event in published for frame in stream.push(event)] + stream.finish()
    assert frames.pop().data == "[DONE]"
    chunks: list[Any] = []
    for frame in frames:
        assert isinstance(frame.data, dict)
        for choice in frame.data["choices"]:
            assert choice["finish_reason"] in {None, "stop", "length"}
        # The SDK declares the reason as always there, and sends chunks without it all the same.
        chunks.append(SdkCompletion.construct(**frame.data))
    return chunks


def test_a_completion_has_the_shape_of_the_sdk(nano: Codec) -> None:
    asked = request()
    body = rendered(nano, asked, turn(nano, asked, f" upon{END}"))
    [choice] = body.choices
    assert (body.id, body.object, body.model) == ("cmpl-1", "text_completion", "nano")
    assert (choice.text, choice.finish_reason, choice.logprobs, choice.index) == (" upon", "stop", None, 0)
    assert (body.usage.prompt_tokens, body.usage.completion_tokens) == (
        len(nano.encode_text("Once")),
        len(nano.encode_text(f" upon{END}")),
    )
    assert body.usage.total_tokens == body.usage.prompt_tokens + body.usage.completion_tokens


def test_a_stop_string_is_not_shown_but_counted(nano: Codec) -> None:
    asked = request(stop="\n")
    said = turn(nano, asked, "12\nmore")
    body = rendered(nano, asked, said)
    assert body.choices[0].text == "12"
    assert body.usage.completion_tokens == len(said.output_ids_T)


def test_an_echo_stands_before_the_text(nano: Codec) -> None:
    ids = list(nano.encode_text(f"<|im_start|>x{END}"))
    asked = request(prompt=["Once", ids], echo=True)
    turns = [turn(nano, asked, f" a{END}", choice=0), turn(nano, asked, f" b{END}", choice=1)]
    body = rendered(nano, asked, *turns)
    assert [choice.text for choice in body.choices] == ["Once a", f"<|im_start|>x{END} b"]
    chunks = streamed(nano, asked, events(nano, asked, turns[1], [1]))
    assert "".join(chunk.choices[0].text for chunk in chunks) == f"<|im_start|>x{END} b"


def test_logprobs_name_the_sampled_token_beside_the_likeliest(nano: Codec) -> None:
    one, two = nano.encode_text("12")
    asked = request(logprobs=1)
    said = turn(nano, asked, "12", FinishReason.LENGTH)
    logprobs = rendered(nano, asked, said, top=(((one, 0.0),), ((one, -0.1),))).choices[0].logprobs
    assert logprobs.tokens == ["1", "2"]
    assert logprobs.token_logprobs == [0.0, -0.25]
    assert logprobs.top_logprobs == [{"1": 0.0}, {"2": -0.25, "1": -0.1}]
    assert logprobs.text_offset == [0, 1]
    as_ids = request(logprobs=0, return_tokens_as_token_ids=True)
    logprobs = rendered(nano, as_ids, said).choices[0].logprobs
    assert logprobs.tokens == [f"token_id:{one}", f"token_id:{two}"]
    assert logprobs.top_logprobs == [{f"token_id:{one}": 0.0}, {f"token_id:{two}": -0.25}]


def test_offsets_count_characters_of_the_text(nano: Codec) -> None:
    asked = request(logprobs=0)
    said = turn(nano, asked, f"é1{END}")
    logprobs = rendered(nano, asked, said).choices[0].logprobs
    # Two tokens make up the first character; the end token has no text.
    assert logprobs.text_offset == [0, 0, 1, 2]


def test_token_ids_are_returned_to_those_who_ask(nano: Codec) -> None:
    asked = request(return_token_ids=True)
    said = turn(nano, asked, f" upon{END}")
    [choice] = rendered(nano, asked, said).choices
    assert choice.model_extra == {"token_ids": list(said.output_ids_T), "prompt_token_ids": list(said.prompt_ids)}
    assert not rendered(nano, request(), said).choices[0].model_extra


def test_prompts_and_choices_are_numbered_in_one_row_and_prompts_counted_once(nano: Codec) -> None:
    asked = request(prompt=["Once", "Once"], n=2, stream=True, stream_options={"include_usage": True})
    turns = [turn(nano, asked, f"{choice}{END}", choice=choice) for choice in range(4)]
    body = rendered(nano, asked, *turns)
    assert [(choice.index, choice.text) for choice in body.choices] == [(n, str(n)) for n in range(4)]
    assert body.usage.prompt_tokens == 2 * len(nano.encode_text("Once"))
    merged = [event for each in turns for event in events(nano, asked, each)]
    chunks = streamed(nano, asked, iter(merged))
    assert chunks[-1].choices == []
    assert chunks[-1].usage == body.usage


def test_an_aborted_turn_has_no_text(nano: Codec) -> None:
    asked = request()
    said = turn(nano, asked, "1", FinishReason.ABORT)
    with pytest.raises(EngineFailure):
        rendered(nano, asked, said)
    with pytest.raises(EngineFailure):
        streamed(nano, asked, events(nano, asked, said))


def test_a_stream_that_breaks_off_ends_with_an_error_event(nano: Codec) -> None:
    [frame] = TextCompletionStream(request(stream=True), HEAD, nano).fail(EngineFailure("broke"))
    assert isinstance(frame.data, dict)
    assert frame.data["error"]["message"] == "broke"


TEXTS = st.lists(st.sampled_from(["12", "é", "🙂", "\n", "STOP", "ST", END, " text "]), max_size=8).map("".join)


@settings(max_examples=examples(150), deadline=None)
@given(
    text=TEXTS,
    cuts=st.lists(st.integers(1, 6), max_size=20),
    stop=st.sampled_from([None, "STOP", ["TO", "ST"]]),
    finish=st.sampled_from([FinishReason.STOP, FinishReason.LENGTH]),
    echo=st.booleans(),
)
def test_a_stream_adds_up_to_the_completion(
    nano: Codec, text: str, cuts: list[int], stop: Any, finish: FinishReason, echo: bool
) -> None:
    shown = {"echo": True} if echo else {"logprobs": 2}
    asked = request(stream=True, stop=stop, return_token_ids=True, **shown)
    said = turn(nano, asked, text, finish)
    top = tuple(((token, -0.5), (token + 1, -1.0)) for token in said.output_ids_T)
    [choice] = rendered(nano, asked, said, top=top).choices

    chunks = streamed(nano, asked, events(nano, asked, said, cuts, top))

    parts = [chunk.choices[0] for chunk in chunks]
    assert "".join(part.text for part in parts) == choice.text
    assert parts[-1].finish_reason == choice.finish_reason
    assert [token for part in parts for token in part.token_ids] == list(said.output_ids_T)
    assert parts[0].prompt_token_ids == list(said.prompt_ids)
    if not echo:
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            joined = [each for part in parts if part.logprobs for each in getattr(part.logprobs, name)]
            assert joined == getattr(choice.logprobs, name)
