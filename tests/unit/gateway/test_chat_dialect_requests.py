"""What chat/completions bodies are understood as, and which are refused by name."""

from __future__ import annotations

import pytest

from swarm.errors import BadRequest, UnknownParameter
from swarm.gateway.dialects.chat.request import parse_chat_request
from swarm.gateway.dialects.fields import json_object_grammar
from swarm.rollout.model_request import SamplingDefaults
from swarm.types import Grammar, GrammarKind, SamplingParams, ToolChoice, ToolMode

DEFAULTS = SamplingDefaults(temperature=0.9, top_p=0.8, max_tokens=33, stop_token_ids=(2,))
MESSAGES = [{"role": "user", "content": "Reverse: ABC"}]
CALCULATOR = {"type": "function", "function": {"name": "calculator", "parameters": {"type": "object"}}}

COMPACT = '"x-guidance": {"whitespace_flexible": false, "item_separator": ",", "key_separator": ":"}'


def parse(**fields):
    return parse_chat_request({"model": "nano", "messages": MESSAGES, **fields}, DEFAULTS)


def test_a_silent_request_gets_the_defaults():
    request = parse()
    call = request.call
    (conversation,) = call.prompts

    assert call.params == SamplingParams(max_tokens=33, temperature=0.9, top_p=0.8, stop_token_ids=(2,))
    assert (call.model, conversation.messages, conversation.tools) == ("nano", tuple(MESSAGES), ())
    assert (call.choices, call.tool_choice, conversation.template_options) == (1, ToolChoice(), {})
    assert not (request.stream or request.body.includes_usage or request.body.logprobs)
    assert request.ignored_fields == ()


def test_sampling_fields_are_taken_over():
    call = parse(
        temperature=0,
        top_p=0.5,
        top_k=7,
        max_tokens=5,
        seed=11,
        stop=["a", "b"],
        n=3,
        min_p=0.1,
        presence_penalty=1,
        frequency_penalty=-0.5,
        repetition_penalty=1.2,
        logit_bias={"7": 1, "5": -100},
        stop_token_ids=[9, 2],
        min_tokens=2,
        logprobs=True,
        top_logprobs=4,
    ).call

    assert call.choices == 3
    assert call.params == SamplingParams(
        5, 0.0, 0.5, 7, 11, ("a", "b"), (2, 9), 0.1, 1.0, -0.5, 1.2, ((5, -100.0), (7, 1.0)), 2, top_logprobs=4
    )


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"stop": "a"}, ("stop", ("a",))),
        ({"stop": None}, ("stop", ())),
        ({"max_completion_tokens": 9}, ("max_tokens", 9)),
        ({"max_completion_tokens": 9, "max_tokens": 9}, ("max_tokens", 9)),
        ({"top_k": -1}, ("top_k", 0)),
        ({"temperature": None}, ("temperature", 0.9)),
        ({"seed": -1}, ("seed", 2**63 - 1)),
        ({"ignore_eos": True}, ("stop_token_ids", ())),
        ({"ignore_eos": True, "stop_token_ids": [5]}, ("stop_token_ids", (5,))),
        ({"response_format": {"type": "text"}}, ("grammar", None)),
        (
            {"response_format": {"type": "json_object"}},
            ("grammar", Grammar(GrammarKind.JSON_OBJECT, f'{{"type": "object", {COMPACT}}}')),
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "array"}}}},
            ("grammar", Grammar(GrammarKind.JSON_SCHEMA, f'{{"type": "array", {COMPACT}}}')),
        ),
        (
            {"structured_outputs": {"json": {"type": "null"}}},
            ("grammar", Grammar(GrammarKind.JSON_SCHEMA, f'{{"type": "null", {COMPACT}}}')),
        ),
        (
            {"structured_outputs": {"json": '{"type": "null", "x-guidance": {"whitespace_flexible": true}}'}},
            ("grammar", Grammar(GrammarKind.JSON_SCHEMA, f'{{"type": "null", {COMPACT}}}')),
        ),
        ({"structured_outputs": {"json_object": True}}, ("grammar", json_object_grammar())),
        ({"structured_outputs": {"regex": "a+"}}, ("grammar", Grammar(GrammarKind.REGEX, "a+"))),
        ({"structured_outputs": {"choice": ["a.", "b"]}}, ("grammar", Grammar(GrammarKind.REGEX, "a\\.|b"))),
        ({"structured_outputs": {"grammar": "start: A"}}, ("grammar", Grammar(GrammarKind.LARK, "start: A"))),
    ],
)
def test_spellings_of_sampling_fields(fields, expected):
    assert getattr(parse(**fields).call.params, expected[0]) == expected[1]


def test_messages_of_every_role_are_kept_with_their_text_joined():
    call = {"id": "call00000", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "system", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": " two"}]},
        {"role": "user", "content": "hi", "name": "Ada"},
        {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None},
        {"role": "tool", "tool_call_id": "call00000", "content": "12"},
    ]

    parsed = parse(messages=messages, tools=[CALCULATOR]).call.prompts[0].messages

    assert parsed[1] == {"role": "system", "content": "one two"}
    assert parsed[2] == messages[2]
    assert parsed[3] == {"role": "assistant", "content": "", "tool_calls": [call]}
    assert parsed[4] == messages[4]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, ToolChoice()),
        ({"tool_choice": "auto"}, ToolChoice()),
        ({"tool_choice": "none"}, ToolChoice(ToolMode.NONE)),
        ({"tool_choice": "required"}, ToolChoice(ToolMode.REQUIRED)),
        ({"parallel_tool_calls": False}, ToolChoice(parallel=False)),
        (
            {"tool_choice": {"type": "function", "function": {"name": "calculator"}}},
            ToolChoice(ToolMode.REQUIRED, ("calculator",), parallel=False),
        ),
        (
            {
                "tool_choice": {
                    "type": "allowed_tools",
                    "allowed_tools": {
                        "mode": "required",
                        "tools": [{"type": "function", "function": {"name": "calculator"}}],
                    },
                }
            },
            ToolChoice(ToolMode.REQUIRED, ("calculator",)),
        ),
    ],
)
def test_which_tools_may_be_called_is_taken_over(fields, expected):
    call = parse(tools=[CALCULATOR], **fields).call

    assert call.prompts[0].tools == (CALCULATOR,)
    assert call.tool_choice == expected


def test_what_the_chat_template_reads_is_handed_on():
    options = parse(reasoning_effort="high", chat_template_kwargs={"enable_thinking": False}).call.prompts[0]

    assert options.template_options == {"reasoning_effort": "high", "enable_thinking": False}


def test_names_of_unknown_fields_fit_into_a_response_header():
    names = parse(**{"a\r\nb": 1, "é🙂": 2, "x" * 500: 3, **{f"z{i}": i for i in range(100)}}).ignored_fields

    assert len(names) == 33 and names[-1] == "and 71 more"
    assert all(name.isascii() and name.isprintable() and len(name) <= 80 for name in names)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 129}, "n"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"seed": 2**63}, "seed"),
        ({"tools": [{"type": "retrieval"}]}, "tools"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "messages.0.content"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(fields, param):
    with pytest.raises(UnknownParameter) as refused:
        parse(**fields)
    assert refused.value.param == param
    assert param.split(".")[-1] in refused.value.message
    assert "\n" not in refused.value.message


@pytest.mark.parametrize("part", ["image_url", "input_audio", "file", "refusal"])
def test_other_content_parts_are_named(part):
    with pytest.raises(BadRequest, match=part):
        parse(messages=[{"role": "user", "content": [{"type": part}]}])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": None}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "narrator", "content": "hi"}]}, "messages.0.role"),
        ({"messages": [{"role": "user"}]}, "messages.0"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "x"}]}]}, "messages.0.tool_calls.0.function"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"temperature": True}, "temperature"),
        ({"stop": ""}, "stop.0"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, None),
        ({"top_logprobs": 3}, None),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "json": {}}}, "structured_outputs"),
        ({"structured_outputs": {"choice": [1]}}, "structured_outputs"),
    ],
)
def test_malformed_fields_are_named(fields, param):
    with pytest.raises(BadRequest) as refused:
        parse(**fields)
    assert refused.value.param == param
    assert "\n" not in refused.value.message


@pytest.mark.parametrize("body", [[], "text", None, 5])
def test_a_body_that_is_no_object_is_refused(body):
    with pytest.raises(BadRequest, match="JSON object"):
        parse_chat_request(body, DEFAULTS)
