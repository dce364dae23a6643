"""Reasoning is told apart from the reply, and history keeps it exactly where the template does."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests_support import examples

from swarm.errors import BadRequest
from swarm.job import ReasoningParser
from swarm.tracker.codec import Codec
from swarm.tracker.reply import REASONING_FORMATS, ReasoningStream
from swarm.types import ForkReason, ReasoningPart, TextPart, ToolChoice

QUESTION = [{"role": "user", "content": "What is the weather in Paris today?"}]
RESULT = {"role": "tool", "content": "21 degrees"}
TOOLS = ({"type": "function", "function": {"name": "f"}},)
CALL = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
THINK = REASONING_FORMATS["think"]
PIECES = st.sampled_from(["<think>", "</think>", "<th", "ink>", "</th", "text", " ", "\n", "<", ">"])


def _read(chunks, *, is_inside):
    stream = ReasoningStream(THINK, is_inside=is_inside)
    pairs = [*(stream.push(chunk) for chunk in chunks), stream.finish()]
    return "".join(reasoning for reasoning, _ in pairs), "".join(text for _, text in pairs)


def _sample(codec, make_turn, text, messages=QUESTION, **fields):
    return make_turn(codec, messages, codec.encode_text(text), **fields)


@settings(max_examples=examples(400), deadline=None)
@given(pieces=st.lists(PIECES, max_size=12), is_inside=st.booleans(), data=st.data())
def test_reasoning_is_the_same_however_the_text_is_cut(pieces, is_inside, data):
    text = "".join(pieces)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=9)))
    chunks = [text[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]

    whole = _read([text], is_inside=is_inside)

    assert _read(chunks, is_inside=is_inside) == whole
    if not is_inside and not text.lstrip().startswith("<think>"):
        assert whole == ("", text) == _read(chunks, is_inside=is_inside)


@pytest.mark.parametrize(
    ("text", "is_inside", "expected"),
    [
        ("<think>\nHm.\n</think>\n\nSunny.", False, ("Hm.", "Sunny.")),
        ("Hm.\n</think>\n\nSunny.", True, ("Hm.", "Sunny.")),
        ("<think>\n\n</think>\n\nSunny.", False, ("", "Sunny.")),
        ("\n<think>Hm", False, ("Hm", "")),
        ("Hm </thi", True, ("Hm </thi", "")),
        ("It is <think>Hm</think>", False, ("", "It is <think>Hm</think>")),
        ("Hm</think>a</think>b", True, ("Hm", "a</think>b")),
        ("  <thi", False, ("", "  <thi")),
    ],
)
def test_reasoning_in_every_shape(text, is_inside, expected):
    assert _read([text], is_inside=is_inside) == _read(text, is_inside=is_inside) == expected


@pytest.mark.parametrize(
    ("style", "text"),
    [
        ("thinking", "<think>\nHm.\n</think>\n\nSunny."),
        ("opened", "Hm.\n</think>\n\nSunny."),
        ("magistral", "[THINK]Hm.[/THINK]Sunny."),
    ],
)
def test_reasoning_streams_as_it_comes_and_stands_apart_in_the_message(codecs, style, text):
    codec = codecs[style]
    ids = codec.encode_text(text)
    stream = codec.reply_stream(TOOLS, turn_index=0, prompt_ids=codec.render(QUESTION))

    parts = [part for token in ids for part in stream.push([token])] + stream.finish()

    assert stream.message == {"role": "assistant", "content": "Sunny.", "reasoning_content": "Hm."}
    kinds = [type(part) for part in parts]
    assert kinds == sorted(kinds, key=[ReasoningPart, TextPart].index)
    assert kinds.count(ReasoningPart) > 1
    assert stream.is_exact(ids)


def test_a_call_inside_reasoning_is_no_call(codecs):
    codec = codecs["thinking"]

    message = codec.parse_reply(codec.encode_text(f"<think>{CALL}</think>{CALL}"), TOOLS, turn_index=0)

    assert message["reasoning_content"] == CALL
    assert len(message["tool_calls"]) == 1


def test_reasoning_is_text_where_the_job_says_so(codecs):
    codec = Codec(codecs["thinking"]._tokenizer, reasoning_parser="none")
    text = "<think>Hm</think>Sunny."

    assert codec.parse_reply(codec.encode_text(text), turn_index=0) == {"role": "assistant", "content": text}


def test_a_job_may_name_every_reasoning_format_there_is(codecs):
    assert set(get_args(ReasoningParser)) == {"auto", "none", *REASONING_FORMATS}
    found = {style: codec.syntax.reasoning and codec.syntax.reasoning.name for style, codec in codecs.items()}
    expected = {"qwen3": "think", "thinking": "think", "opened": "think", "magistral": "mistral"}
    assert {style: name for style, name in found.items() if name} == expected


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_a_tool_using_conversation_with_its_reasoning_extends_exactly(codecs, make_turn, field):
    codec = codecs["thinking"]
    messages, prompt_ids = list(QUESTION), None
    for index in range(3):
        turn = _sample(
            codec, make_turn, f"<think>\nHm {index}.\n</think>\n\n{CALL}<|im_end|>", messages,
            tools=TOOLS, index=index, prompt_ids=prompt_ids,
        )  # fmt: skip
        reply = dict(turn.reply)
        reply[field] = reply.pop("reasoning_content")
        messages = [*messages, reply, RESULT]
        prompt_ids = codec.extend(turn, messages, TOOLS).prompt_ids

        assert prompt_ids[: len(turn.prompt_ids + turn.output_ids_T)] == turn.prompt_ids + turn.output_ids_T
        assert codec.raw_text(prompt_ids) == codec.render_text(messages, TOOLS, generation_prompt=True)


@pytest.mark.parametrize("text", ["<think>Hm.</think>Sunny.", "<think>\n  Hm.\n\n</think>  \nSunny. "])
def test_reasoning_in_unusual_white_space_extends_all_the_same(codecs, make_turn, text):
    codec = codecs["thinking"]
    turn = _sample(codec, make_turn, text + "<|im_end|>")

    assert codec.extend(turn, [*QUESTION, turn.reply, RESULT]).reason is None


def _without_reasoning(reply):
    return {key: value for key, value in reply.items() if key != "reasoning_content"}


@pytest.mark.parametrize(
    ("style", "text", "change", "added"),
    [
        ("thinking", "<think>\nHm.\n</think>\n\nSunny.<|im_end|>", _without_reasoning, RESULT),
        ("thinking", "<think>\nHm.\n</think>\n\nSunny.<|im_end|>", lambda r: r | {"reasoning_content": "No."}, RESULT),
        ("thinking", "<think>\nHm.\n</think>\n\nSunny.<|im_end|>", dict, {"role": "user", "content": "And now?"}),
        ("opened", "Hm.\n</think>\n\nSunny.</s>", dict, {"role": "user", "content": "And now?"}),
    ],
)
def test_reasoning_that_history_does_not_show_forks(codecs, make_turn, style, text, change, added):
    codec = codecs[style]
    turn = _sample(codec, make_turn, text)

    extension = codec.extend(turn, [*QUESTION, change(turn.reply), added])

    assert (extension.prompt_ids, extension.reason) == (None, ForkReason.TEMPLATE_REWRITE)


def test_a_template_without_a_place_for_reasoning_shows_it_as_the_model_wrote_it(codecs, make_turn):
    codec = codecs["magistral"]
    turn = _sample(codec, make_turn, "[THINK]\nHm.\n[/THINK]\n\nSunny.</s>")
    messages = [*QUESTION, turn.reply, *QUESTION]

    extension = codec.extend(turn, messages)

    assert codec.raw_text(extension.prompt_ids) == codec.render_text(messages, (), generation_prompt=True)
    assert "[THINK]\nHm." in codec.render_text(messages, (), generation_prompt=True)


def test_a_call_that_was_not_shown_forks(chatml, make_turn):
    choice = ToolChoice(parallel=False)
    for text, reason in ((CALL, None), (f"{CALL}\n{CALL}", ForkReason.TEMPLATE_REWRITE)):
        turn = _sample(chatml, make_turn, text + "<|im_end|>", tools=TOOLS, choice=choice)

        assert chatml.extend(turn, [*QUESTION, turn.reply, RESULT], TOOLS).reason is reason


def test_template_options_reach_the_template(codecs):
    codec = codecs["thinking"]

    text = codec.render_text(QUESTION, (), {"enable_thinking": False}, generation_prompt=True)

    assert text.endswith("<think>\n\n</think>\n\n")
    assert codec.encode_text(text) == codec.render(QUESTION, (), {"enable_thinking": False})
    for name in ("no_such_option", "tokenize", "chat_template", "eos_token", "messages"):
        with pytest.raises(BadRequest, match=name):
            codec.render(QUESTION, (), {name: "x"})


def test_a_turn_sampled_under_other_options_is_not_extended(codecs, make_turn):
    codec = codecs["thinking"]
    prompts = {thinks: codec.render(QUESTION, (), {"enable_thinking": thinks}) for thinks in (True, False)}
    for before, prompt_ids in prompts.items():
        turn = _sample(codec, make_turn, "Sunny.<|im_end|>", prompt_ids=prompt_ids)
        messages = [*QUESTION, turn.reply, RESULT]
        for now in prompts:
            extension = codec.extend(turn, messages, (), {"enable_thinking": now})
            if before and now:
                assert extension.prompt_ids[: len(prompt_ids)] == prompt_ids
            else:
                assert extension.reason is ForkReason.TEMPLATE_REWRITE
