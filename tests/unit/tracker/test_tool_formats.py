# ruff: noqa: E501  (cases read best unbroken)
"""Tool calls of every format: found however the text is cut, and anything else is text, character for character."""

from __future__ import annotations

import json
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests_support import examples

from swarm.errors import JobInvalid
from swarm.job import ToolParser, build_job
from swarm.tracker.codec import Codec
from swarm.tracker.formats.base import CallStream, ToolCall
from swarm.tracker.formats.registry import TOOL_FORMATS, tool_format
from swarm.types import ToolCallPart, ToolChoice, ToolMode

TOOLS = ({"type": "function", "function": {"name": "f"}},)
STYLES = {"hermes": "chatml", "llama3_json": "llama3", "mistral": "mistral_tools"}
PIECES = {
    "hermes": ["<tool_call>", "</tool_call>", "<tool", "_call>", '{"name": "f"}', '{"name": "f", "arguments": {"a": "'],
    "llama3_json": ["<|python_tag|>", "<|python", "_tag|>", '{"name": "f", "parameters": {}}', ";", '{"name": "f"}', "\\"],
    "mistral": [
        "[TOOL_CALLS]", "[TOOL_", "CALLS]", "[ARGS]", "[CALL_ID]", "[AR", "GS]", "f", "[", "]", ",", '{"name": "f"}',
        '[{"name": "f", "arguments": {}}]', "[TOOL_CALLS]f{}", " " * 200, "\\",
    ],
}  # fmt: skip
CALLS = {
    "hermes": '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>',
    "llama3_json": '{"name": "f", "parameters": {"a": 1}}',
    "mistral": '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}]',
}
FORMATS = sorted(TOOL_FORMATS)


def _read(name, *chunks):
    stream = CallStream(TOOL_FORMATS[name])
    parts = [part for chunk in chunks for part in stream.push(chunk)] + stream.finish()
    merged = []
    for part in parts:
        if isinstance(part, str) and merged and isinstance(merged[-1], str):
            merged[-1] += part
        else:
            merged.append(part)
    return merged


@st.composite
def _texts(draw):
    name = draw(st.sampled_from(FORMATS))
    common = ["\n", " ", "text", "{", "}", '"', "é", "<", "{bad}", '{"a": "}"}', CALLS[name]]
    return name, "".join(draw(st.lists(st.sampled_from([*PIECES[name], *common]), max_size=12)))


@settings(max_examples=examples(600), deadline=None)
@given(case=_texts(), data=st.data())
def test_the_parts_are_the_same_however_the_text_is_cut(case, data):
    name, text = case
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=20)))
    chunks = [text[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]

    whole = _read(name, text)

    assert _read(name, *chunks) == whole
    assert _read(name, *text) == whole
    if not any(isinstance(part, ToolCall) for part in whole):
        assert "".join(whole) == text


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("llama3_json", '<|python_tag|>{"name": "f", "parameters": {}}', [ToolCall("f", "{}")]),
        ("llama3_json", 'See: <|python_tag|> {"name": "f", "parameters": {}}', ["See:", ToolCall("f", "{}")]),
        ("llama3_json", '{"name": "f", "parameters": {}} ; {"name": "g", "arguments": {"a": 2}}\n',
         [ToolCall("f", "{}"), ToolCall("g", '{"a": 2}')]),
        ("llama3_json", '{"type": "function", "name": "f", "parameters": {"a": "}\\""}}', [ToolCall("f", '{"a": "}\\""}')]),
        ("llama3_json", '{"name": "f", "parameters": {}}; and more', [ToolCall("f", "{}"), "; and more"]),
        ("mistral", '[TOOL_CALLS] [{"name": "f", "arguments": {}}, {"arguments": {"a": [1]}, "name": "g"}]',
         [ToolCall("f", "{}"), ToolCall("g", '{"a": [1]}')]),
        ("mistral", 'See:\n[TOOL_CALLS]f{"a": 1}[TOOL_CALLS]g[ARGS]{}', ["See:", ToolCall("f", '{"a": 1}'), ToolCall("g", "{}")]),
        ("mistral", '[TOOL_CALLS]f[CALL_ID]abc123def[ARGS]{"a": 1}', [ToolCall("f", '{"a": 1}')]),
        ("mistral", "[TOOL_CALLS][TOOL_CALLS]f{}", ["[TOOL_CALLS]", ToolCall("f", "{}")]),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "</tool_call>"}}</tool_call>',
         [ToolCall("f", '{"a": "</tool_call>"}')]),
        ("hermes", '<tool_call>{"a</tool_call>!<tool_call>{"name": "f"}</tool_call>',
         ['<tool_call>{"a</tool_call>!', ToolCall("f", "{}")]),
        # White space around a call belongs to it.
        ("hermes", 'See:\n<tool_call>{"name": "f"}</tool_call>\n', ["See:", ToolCall("f", "{}")]),
        ("hermes", '\n<tool_call>{"name": "f"}</tool_call>\nThere.', [ToolCall("f", "{}"), "There."]),
        ("hermes", 'See:\n<tool_call>{"name": "f"}</tool_call>\nThere. ', ["See:", ToolCall("f", "{}"), "\nThere."]),
        ("hermes", 'See: <tool_call>bad</tool_call>\n<tool_call>{"name": "f"}</tool_call>',
         ["See: <tool_call>bad</tool_call>", ToolCall("f", "{}")]),
        # The closing tag may be missing.
        ("hermes", '<tool_call>{"name": "f"}', [ToolCall("f", "{}")]),
    ],
)  # fmt: skip
def test_calls_in_every_spelling(name, text, expected):
    assert _read(name, text) == expected


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("llama3_json", '{"name": "Ada", "age": 36}'), ("llama3_json", 'Call {"name": "f", "parameters": {}}'),
        ("llama3_json", '<|python_tag|>search.call(query="x")'), ("llama3_json", '{"name": "f", "parameters": {}'),
        ("llama3_json", '{"name": "f", "parameters": [1]}'), ("llama3_json", "<|python_tag|>"),
        ("mistral", "[TOOL_CALLS]"), ("mistral", "[TOOL_CALLS] two words{}"), ("mistral", "[TOOL_CALLS]f[1]"),
        ("mistral", '[TOOL_CALLS] [{"name": "f", "arguments": {}}, {"x": 1}]'), ("mistral", "[TOOL_CALLS]f{bad}"),
        ("mistral", "[TOOL_CALLS] []"), ("mistral", "[TOOL_CALLS]" + "f" * 300 + "{}"), ("mistral", "[TOOL_CALLS]f{"),
        ("mistral", "[TOOL_CALLS] [" + '{"a":' * 50_000),
        *(("hermes", f"<tool_call>{body}</tool_call>") for body in (
            "", "{", "not json", "[]", "1", '{"arguments": {}}', '{"name": 1, "arguments": {}}',
            '{"name": "", "arguments": {}}', '{"name": "f", "arguments": [1]}', '{"name": "f", "arguments": NaN}',
            '{"name": "f", "arguments": {"a": NaN}}', '{"name": "f", "arguments": {"a": 1}} {}',
            '{"name": "\\ud800", "arguments": {}}', "[" * 100_000, '{"name": "f", "arguments": ' + '{"a":' * 50_000,
            '{"name": "f", "arguments": "text"}', '{"name": "f", "arguments": ' + "9" * 5000 + "}",
        )),
    ],
)  # fmt: skip
def test_what_is_no_call_is_text(name, text):
    assert _read(name, text) == [text]


@pytest.mark.parametrize("name", FORMATS)
def test_content_streams_before_a_call_is_whole(name):
    stream = CallStream(TOOL_FORMATS[name])

    assert stream.push("Let me") == ["Let me"]
    assert stream.push(" see ") == [" see"]


@pytest.mark.parametrize("name", FORMATS)
def test_long_arguments_are_read_in_linear_time(name):
    stream = CallStream(TOOL_FORMATS[name])
    text = CALLS[name].replace("1", json.dumps("x\\" * 100_000))

    parts = [part for begin in range(0, len(text), 5) for part in stream.push(text[begin : begin + 5])]

    assert [type(part) for part in parts + stream.finish()] == [ToolCall]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=2),
    max_leaves=4,
)


@settings(max_examples=examples(100), deadline=None)
@given(
    calls=st.lists(st.tuples(st.sampled_from(["f", "get-time", "a_1"]), st.dictionaries(st.text(max_size=5), VALUES)), min_size=1, max_size=3),
    style=st.sampled_from([*STYLES.values(), "magistral", "thinking"]),
)  # fmt: skip
def test_calls_that_the_template_shows_are_read_back(codecs, calls, style):
    codec = codecs[style]
    messages = [{"role": "user", "content": "?"}]
    functions = [{"name": name, "arguments": json.dumps(arguments)} for name, arguments in calls]
    reply = {"role": "assistant", "tool_calls": [{"type": "function", "function": each} for each in functions]}
    prompt = codec.render_text(messages, TOOLS, generation_prompt=True)
    shown = codec.render_text([*messages, reply], TOOLS, generation_prompt=False).removeprefix(prompt)

    message = codec.parse_reply(codec.encode_text(shown.rstrip("\n")), TOOLS, turn_index=0)

    read = [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in message["tool_calls"]]
    assert (read, message["content"]) == (calls, None)


@pytest.mark.parametrize(
    ("style", "name"),
    [
        *((style, name) for name, style in STYLES.items()),
        ("magistral", "mistral"),
        ("thinking", "hermes"),
        ("plain", "hermes"),
    ],
)
def test_the_format_is_that_of_the_template(codecs, style, name):
    assert codecs[style].syntax.calls.name == name


def test_the_template_decides_before_the_vocabulary_and_the_vocabulary_where_it_is_silent():
    assert tool_format("<tool_call>", {"<|python_tag|>"}).name == "hermes"
    assert tool_format("", {"<|python_tag|>"}).name == "llama3_json"
    assert tool_format('{"name": function name, "parameters": dictionary}', ()).name == "llama3_json"


def test_a_job_may_name_every_format_there_is():
    assert set(get_args(ToolParser)) == {"auto", *TOOL_FORMATS}
    assert all(name == form.name for name, form in TOOL_FORMATS.items())


@pytest.mark.parametrize(
    ("setting", "known"),
    [("tool_parser", "'hermes', 'llama3_json' or 'mistral'"), ("reasoning_parser", "'none', 'think'")],
)
def test_an_unknown_format_is_refused_and_the_known_ones_are_named(setting, known):
    with pytest.raises(JobInvalid, match=known) as refused:
        build_job({setting: "xml"})
    assert refused.value.param == setting


def test_the_format_that_the_job_names_wins(tmp_path, codecs):
    codecs["chatml"]._tokenizer.save_pretrained(tmp_path)

    loaded = Codec.load(tmp_path, tool_parser="llama3_json", reasoning_parser="think")

    assert (loaded.syntax.calls.name, loaded.syntax.reasoning.name) == ("llama3_json", "think")


@pytest.mark.parametrize("style", STYLES.values())
def test_calls_are_text_where_none_may_be_made(codecs, style):
    codec = codecs[style]
    text = CALLS[codec.syntax.calls.name]

    for tools, choice in (((), ToolChoice()), (TOOLS, ToolChoice(ToolMode.NONE))):
        message = codec.parse_reply(codec.encode_text(text), tools, choice=choice, turn_index=0)
        assert message == {"role": "assistant", "content": text}


@pytest.mark.parametrize("name", FORMATS)
def test_without_parallel_calls_the_reply_ends_with_the_first(codecs, name):
    codec = codecs[STYLES[name]]
    separator = ";" if name == "llama3_json" else ""
    ids = codec.encode_text(CALLS[name] + separator + CALLS[name] + " And more.")
    stream = codec.reply_stream(TOOLS, choice=ToolChoice(parallel=False), turn_index=0)

    parts = [part for token in ids for part in stream.push([token])] + stream.finish()

    assert parts == [ToolCallPart("call00000", "f", '{"a": 1}')]
    assert (stream.message["content"], len(stream.message["tool_calls"])) == (None, 1)
    assert stream.is_exact(ids)
    assert not stream.is_exact(ids[:-1])
