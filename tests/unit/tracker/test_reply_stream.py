"""Sampled tokens to text and tool calls: the same however they arrive, and never half of anything."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests_support import examples

from swarm.tracker.formats.base import ToolCall
from swarm.tracker.formats.json_text import parse_call
from swarm.tracker.reply import call_id
from swarm.types import TextPart

TOOLS = ({"type": "function", "function": {"name": "calculator"}},)


def _pushed(stream, chunks):
    parts = [part for chunk in chunks for part in stream.push(chunk)]
    return parts + stream.finish()


def _cut(items, widths):
    chunks, position = [], 0
    for width in widths:
        chunks.append(items[position : position + width])
        position += width
    return [*chunks, items[position:]]


@settings(max_examples=examples(300), deadline=None)
@given(
    ids=st.lists(st.integers(3, 361), max_size=40),
    widths=st.lists(st.integers(0, 5), max_size=40),
    stop=st.lists(st.text("abct ", min_size=1, max_size=3), max_size=3),
)
def test_streamed_text_equals_text_at_once_for_random_tokens(chatml, ids, widths, stop):
    whole = chatml.parse_reply(ids, TOOLS, turn_index=0, stop=stop)
    stream = chatml.reply_stream(TOOLS, turn_index=0, stop=stop)
    parts = _pushed(stream, _cut(ids, widths))

    assert stream.message == whole
    assert "".join(part.text for part in parts if isinstance(part, TextPart)) == (whole["content"] or "")
    assert stream.is_exact(ids)
    if "tool_calls" not in whole:
        assert not any(mark in whole["content"] for mark in stop)


@settings(max_examples=examples(200), deadline=None)
@given(ids=st.lists(st.integers(3, 359), max_size=60))
def test_text_without_stop_and_tools_is_the_decoded_ids(chatml, ids):
    stream = chatml.text_stream()

    assert "".join([*(stream.push([token]) for token in ids), stream.finish()]) == chatml.decode(ids)


def test_no_piece_holds_half_of_a_character_and_an_unfinished_one_shows_as_a_replacement_at_the_end(chatml):
    ids = chatml.encode_text("🙂")
    assert len(ids) > 1
    stream, cut_off = chatml.text_stream(), chatml.text_stream()

    assert [stream.push([token]) for token in ids] == [""] * (len(ids) - 1) + ["🙂"]
    assert (cut_off.push(ids[:1]), cut_off.finish()) == ("", "\ufffd")


def test_a_long_run_of_broken_bytes_is_shown_before_its_end(chatml):
    broken = chatml.encode_text("🙂")[-1]
    stream = chatml.text_stream()

    pieces = [stream.push([broken]) for _ in range(100)]

    assert len("".join(pieces)) > 50
    assert "".join([*pieces, stream.finish()]) == "\ufffd" * 100


@pytest.mark.parametrize("behind", range(6))
def test_a_character_inside_a_run_of_broken_bytes_stays_whole(chatml, behind):
    clef = chatml.encode_text("\U0001d11e")
    assert len(clef) == 4
    ids = [clef[-1]] * 20 + [*clef] + [clef[-1]] * behind
    stream = chatml.text_stream()

    assert stream.push(ids) + stream.finish() == chatml.decode(ids)


def test_spaces_between_words_survive_a_tokenizer_that_drops_leading_spaces(codecs):
    codec = codecs["mistral"]
    ids = codec.encode_text("It is sunny in Paris")
    stream = codec.text_stream()

    assert "".join([*(stream.push([token]) for token in ids), stream.finish()]) == codec.decode(ids)


@pytest.mark.parametrize("style", ["chatml", "mistral"])
def test_stop_strings_across_token_borders_are_not_shown(codecs, style):
    codec = codecs[style]
    ids = codec.encode_text("The answer is 12.\nObservation: done")
    stream = codec.text_stream(("\nObservation:",))

    pieces = [stream.push([token]) for token in ids]

    assert "".join([*pieces, stream.finish()]).strip() == "The answer is 12."
    assert stream.stopped


def test_what_might_have_become_a_stop_string_is_shown_at_the_end(chatml):
    assert chatml.parse_reply(chatml.encode_text("is END"), turn_index=0, stop=("END!",))["content"] == "is END"


def test_parallel_calls_have_distinct_fixed_ids(chatml):
    text = (
        '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>\n<tool_call>\n{"name": "g"}\n</tool_call><|im_end|>'
    )

    message = chatml.parse_reply(chatml.encode_text(text), TOOLS, turn_index=37)

    assert message["content"] is None
    assert [(call["id"], call["function"]) for call in message["tool_calls"]] == [
        ("call01100", {"name": "f", "arguments": "{}"}),
        ("call01101", {"name": "g", "arguments": "{}"}),
    ]


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        ('{"name": "f", "arguments": {"a":  1.50}}', '{"a":  1.50}'),
        ('{"arguments": {"a": "}"}, "id": [1, {"x": 2}], "name": "f"}', '{"a": "}"}'),
        ('{"name": "f", "arguments": "{\\"a\\": 1}"}', '{"a": 1}'),
        ('\n{"name": "f", "arguments": {"a": "\\ud800"}}\n', '{"a": "\\ud800"}'),
    ],
)
def test_arguments_come_back_as_the_model_wrote_them(body, arguments):
    assert parse_call(body) == ToolCall("f", arguments)
    json.dumps(arguments).encode()


@pytest.mark.parametrize(("turn", "call", "expected"), [(0, 0, "call00000"), (46655, 1295, "callzzzzz")])
def test_call_ids_have_nine_characters(turn, call, expected):
    assert call_id(turn, call) == expected
