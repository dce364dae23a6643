"""A forced call: the grammar lets through what the parser reads as such a call, and nothing else."""

from __future__ import annotations

import json
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from tests_support import examples

from swarm.backends.grammar import GrammarCompiler
from swarm.errors import BadRequest
from swarm.types import ToolChoice, ToolMode

SCHEMA = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/city"}, "days": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"city": {"type": "string", "maxLength": 6}},
}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
TIME = {"type": "function", "function": {"name": "get-time_2", "parameters": SCHEMA | {"required": []}}}
BARE = {"type": "function", "function": {"name": "bare"}}
QUESTION = [{"role": "user", "content": "?"}]
STYLES = ["chatml", "thinking", "opened", "llama3", "mistral_tools", "magistral"]
ONE = ToolChoice(ToolMode.REQUIRED, parallel=False)
SEVERAL = ToolChoice(ToolMode.REQUIRED)


@pytest.fixture(scope="module")
def start(codecs):
    @cache
    def compiler(style):
        tokenizer = codecs[style]._tokenizer
        return GrammarCompiler(tokenizer.backend_tokenizer, len(tokenizer), codecs[style].stop_token_ids)

    return lambda style, grammar: compiler(style).start(grammar, codecs[style].stop_token_ids)


def _allowed(constraint):
    words = constraint.allowed()
    assert words is not None, constraint.error
    return np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))


def _accepts(constraint, ids):
    for token in ids:
        if token not in _allowed(constraint):
            return False
        constraint.take(token)
    return True


def _shown(codec, *calls, reasoning=""):
    functions = [{"name": name, "arguments": json.dumps(arguments)} for name, arguments in calls]
    reply = {"role": "assistant", "tool_calls": [{"type": "function", "function": each} for each in functions]}
    prompt = codec.render_text(QUESTION, (), generation_prompt=True).removesuffix("<think>\n")
    shown = codec.render_text([*QUESTION, reply], (), generation_prompt=False).removeprefix(prompt).strip("\n")
    return reasoning + shown.removeprefix("<think>\n\n</think>\n\n")


REASONED = {"thinking": "<think>\nHm <\n</think>\n\n", "opened": "Hm <\n</think>\n\n", "magistral": "[THINK]Hm[/THINK]"}
TEMPLATES_WITH_CALLS = [style for style in STYLES if style != "opened"]


@pytest.mark.parametrize("style", TEMPLATES_WITH_CALLS)
def test_calls_as_the_template_shows_them_are_accepted(codecs, start, style):
    codec = codecs[style]
    grammar, several = (codec.forced_grammar([WEATHER, TIME], choice) for choice in (ONE, SEVERAL))
    good = ("weather", {"city": "Paris", "days": 3})
    for reasoning in {"", REASONED.get(style, "")}:
        text = _shown(codec, good, reasoning=reasoning)
        assert _accepts(start(style, grammar), codec.encode_text(text)), text
    both = codec.encode_text(_shown(codec, good, ("get-time_2", {})))
    assert _accepts(start(style, several), both)
    assert not _accepts(start(style, grammar), both)
    bad = [("weather", {}), ("weather", {"city": "Paris", "days": 10}), ("other", {"city": "x"}), ("weather", {"x": 1})]
    for call in bad:
        assert not _accepts(start(style, several), codec.encode_text(_shown(codec, call)))
    assert not _accepts(start(style, several), codec.encode_text("Let me see."))


def _ending(codec, ids, allowed):
    """The token that brings a reply nearest to its end."""
    reasoning = codec.syntax.reasoning
    closing = [reasoning.closing] if reasoning and reasoning.closing not in codec.raw_text(ids) else []
    wanted = [*codec.token_text(codec.stop_token_ids), *closing, '"', "}", "]", ":"]
    texts = {codec.raw_text([token]): int(token) for token in allowed}
    return next((texts[text] for text in wanted if text in texts), int(allowed[0]))


@settings(max_examples=examples(60), deadline=None)
@given(style=st.sampled_from(STYLES), seed=st.integers(0, 2**32), parallel=st.booleans())
def test_any_walk_through_the_masks_is_read_as_calls_of_the_tools(codecs, start, style, seed, parallel):
    codec, generator = codecs[style], np.random.default_rng(seed)
    choice = ToolChoice(ToolMode.REQUIRED, ("weather", "bare"), parallel)
    prompt_ids = codec.render(QUESTION)
    tools = [WEATHER, TIME, BARE]
    constraint = start(style, codec.forced_grammar(tools, choice, prompt_ids))
    ids = []
    while not ids or ids[-1] not in codec.stop_token_ids:
        allowed = _allowed(constraint)
        ids.append(_ending(codec, ids, allowed) if len(ids) > 25 else int(generator.choice(allowed)))
        assert len(ids) < 600
        constraint.take(ids[-1])

    message = codec.parse_reply(ids, tools, choice=choice, turn_index=0, prompt_ids=prompt_ids)

    assert message["content"] is None
    assert parallel or len(message["tool_calls"]) == 1
    for call in message["tool_calls"]:
        assert call["function"]["name"] in choice.names
        if call["function"]["name"] == "weather":
            Draft202012Validator(SCHEMA).validate(json.loads(call["function"]["arguments"]))


def test_only_named_tools_may_be_called(codecs, start):
    codec = codecs["chatml"]
    grammar = codec.forced_grammar([WEATHER, TIME], ToolChoice(ToolMode.REQUIRED, ("get-time_2",), parallel=False))

    assert _accepts(start("chatml", grammar), codec.encode_text(_shown(codec, ("get-time_2", {}))))
    assert not _accepts(start("chatml", grammar), codec.encode_text(_shown(codec, ("weather", {"city": "x"}))))


@pytest.mark.parametrize("mode", [ToolMode.AUTO, ToolMode.NONE])
def test_nothing_is_forced_in_other_modes(chatml, mode):
    assert chatml.forced_grammar([WEATHER], ToolChoice(mode)) is None


def test_arguments_have_the_blanks_of_chat_templates_and_no_others(codecs, start):
    codec = codecs["chatml"]
    tool = _tool({"properties": {"a": {"type": "array", "items": {"type": "integer"}}, "b": {"type": "string"}}})
    grammar = codec.forced_grammar([tool], ONE)
    arguments = {"a": [1, 2], "b": "x, y:z"}
    shown = {
        spacing: f'<tool_call>\n{{"name": "f", "arguments": {json.dumps(arguments, separators=spacing)}}}\n</tool_call>'
        for spacing in [(", ", ": "), (",", ":"), (",\n", ": "), (" , ", ": ")]
    }
    accepted = [_accepts(start("chatml", grammar), codec.encode_text(text)) for text in shown.values()]
    assert accepted == [True, False, False, False]


@pytest.mark.parametrize(
    ("parameters", "arguments", "is_allowed"),
    [
        (None, {}, True),
        (None, {"a": 1}, False),
        ({"type": "object"}, {"a": 1}, True),
        ({"properties": {}}, {"a": 1}, False),
        ({"properties": {"a": {}}}, {"a": "x"}, True),
        ({"properties": {"a": {}}}, {"b": 1}, False),
        ({"properties": {"a": {}}, "additionalProperties": True}, {"b": 1}, True),
        ({"properties": {"a": {}}, "required": ["b"]}, {"b": 1}, True),
        ({"properties": {"a": {}}, "anyOf": [{"required": ["b"]}, {"required": ["a"]}]}, {"b": 1}, True),
        ({"properties": {"a": {"type": "integer"}}}, {"a": -(2**53) + 1}, True),
        ({"properties": {"a": {"type": "integer"}}}, {"a": 2**53}, False),
        ({"properties": {"a": {"type": "integer"}}, "additionalProperties": False}, {"a": 2**53}, False),
        ({"properties": {"a": {"type": "integer", "minimum": 0}}}, {"a": 2**60}, True),
    ],
)
def test_arguments_are_those_that_are_declared_and_integers_of_a_size(codecs, start, parameters, arguments, is_allowed):
    tool = {"type": "function", "function": {"name": "f"}} if parameters is None else _tool(parameters)
    codec = codecs["chatml"]
    call = f'<tool_call>\n{{"name": "f", "arguments": {json.dumps(arguments)}}}\n</tool_call>'
    assert _accepts(start("chatml", codec.forced_grammar([tool], ONE)), codec.encode_text(call)) == is_allowed


def _tool(parameters, name="f"):
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


@pytest.mark.parametrize(
    ("style", "tools", "names", "reason"),
    [
        ("chatml", [], (), "send tools"),
        ("chatml", [WEATHER], ("weather", "nothing"), "'nothing': there are weather"),
        ("chatml", [_tool({"type": "string"})], (), "of type object"),
        ("chatml", [_tool([1])], (), "of type object"),
        ("magistral", [_tool({}, "two words")], (), "without blanks"),
    ],
)
def test_what_cannot_be_forced_is_refused_in_one_line(codecs, style, tools, names, reason):
    with pytest.raises(BadRequest, match=reason) as refused:
        codecs[style].forced_grammar(tools, ToolChoice(ToolMode.REQUIRED, names))
    assert refused.value.param in {"tools", "tool_choice"}


def test_options_hidden_in_a_schema_do_not_count(codecs, start):
    hidden = {
        "type": "object",
        "properties": {"a": {"type": "array", "uniqueItems": True}},
        "x-guidance": {"lenient": True},
    }
    grammar = codecs["chatml"].forced_grammar([_tool(hidden)], ONE)

    with pytest.raises(BadRequest, match="uniqueItems"):
        start("chatml", grammar)
