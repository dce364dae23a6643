"""What a responses body asks for is honoured or refused by name."""

from __future__ import annotations

import pytest

from swarm.errors import BadRequest, UnknownParameter
from swarm.gateway.dialects.fields import json_object_grammar, json_schema_grammar
from swarm.gateway.dialects.responses.items import RecordedResponses
from swarm.gateway.dialects.responses.request import parse_response_request
from swarm.rollout.model_request import SamplingDefaults
from swarm.types import ToolChoice, ToolMode

DEFAULTS = SamplingDefaults(0.7, 1.0, 64, (2,))
SCHEMA = {"type": "object", "properties": {}}
TOOL = {"type": "function", "name": "f", "description": "Does.", "parameters": SCHEMA, "strict": None}
PATCH = {"type": "custom", "name": "patch", "description": "Edits.", "format": {"type": "text"}}
CRM = {"type": "namespace", "name": "crm", "description": "Customers.", "tools": [TOOL, PATCH]}
HOSTED = [{"type": "web_search", "external_web_access": False}, {"type": "mcp", "server_label": "a", "server_url": "b"}]
ALLOWED = {"type": "allowed_tools", "tools": [{"type": "function", "name": "f"}]}


def _parse(*, reads=frozenset(), **fields):
    body = {"model": "nano", "input": "Hello", **fields}
    return parse_response_request(body, DEFAULTS, RecordedResponses(), reads.__contains__)


def _conversation(**fields):
    (conversation,) = _parse(**fields).call.prompts
    return conversation


def _call(name="f", call_id="c1", **fields):
    return {"type": "function_call", "name": name, "call_id": call_id, "arguments": "{}", **fields}


def test_a_text_is_a_message_of_the_user_behind_the_instructions():
    assert _conversation(instructions="Be brief.").messages == (
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
    )


def test_items_of_one_reply_are_one_message():
    items = [
        {
            "role": "developer",
            "content": [{"type": "input_text", "text": "Be "}, {"type": "input_text", "text": "kind."}],
        },
        {"type": "message", "role": "user", "content": "Hello"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Look:"}], "id": "msg_1"},
        _call(),
        _call(call_id="c2"),
        {"type": "function_call_output", "call_id": "c1", "output": "1"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "2"}]},
        {"role": "assistant", "content": "Done."},
        {"role": "assistant", "content": "Really."},
    ]
    function = {"name": "f", "arguments": "{}"}
    assert _conversation(input=items).messages == (
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": "Hello"},
        {
            "role": "assistant",
            "content": "Look:",
            "reasoning_content": "Hm.",
            "tool_calls": [{"id": call_id, "type": "function", "function": function} for call_id in ("c1", "c2")],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "1"},
        {"role": "tool", "tool_call_id": "c2", "content": "2"},
        {"role": "assistant", "content": "Done."},
        {"role": "assistant", "content": "Really."},
    )


def test_a_summary_stands_for_reasoning_that_has_no_other_text():
    items = [{"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm."}]}, _call()]
    assert _conversation(input=items).messages[0]["reasoning_content"] == "Hm."


def test_tools_take_the_shape_of_chat():
    function = {"name": "f", "description": "Does.", "parameters": SCHEMA}
    assert _conversation(tools=[TOOL]).tools == ({"type": "function", "function": function},)


def test_tools_of_a_namespace_are_functions_with_qualified_names():
    request = _parse(tools=[TOOL, CRM])
    functions = [tool["function"] for tool in request.call.prompts[0].tools]
    text = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
    assert functions == [
        {"name": "f", "description": "Does.", "parameters": SCHEMA},
        {"name": "crm.f", "description": "Does.", "parameters": SCHEMA},
        {"name": "crm.patch", "description": "Edits.", "parameters": text},
    ]
    assert request.ignored_fields == ("tools.crm.description",)


def test_the_grammar_of_a_custom_tool_is_shown_and_named_as_not_enforced():
    grammar = {"type": "grammar", "syntax": "lark", "definition": "start: /[a-z]+/"}
    request = _parse(tools=[{**PATCH, "format": grammar}])
    [tool] = request.call.prompts[0].tools
    assert tool["function"]["parameters"]["properties"]["input"]["description"] == "start: /[a-z]+/"
    assert request.ignored_fields == ("tools.patch.format",)


def test_hosted_tools_are_not_offered_and_named_as_ignored():
    request = _parse(tools=[*HOSTED, TOOL], flux=1)
    assert [tool["function"]["name"] for tool in request.call.prompts[0].tools] == ["f"]
    assert request.ignored_fields == ("flux", "tools.web_search", "tools.mcp")
    assert [tool["type"] for tool in request.shown.settings["tools"]] == ["function"]


def test_a_call_of_a_namespace_that_comes_back_has_the_qualified_name():
    items = [_call(namespace="crm"), {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": "é"}]
    items += [{"type": "custom_tool_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "2"}]}]
    reply, output = _conversation(input=items).messages
    functions = [call["function"] for call in reply["tool_calls"]]
    assert functions == [{"name": "crm.f", "arguments": "{}"}, {"name": "patch", "arguments": '{"input": "é"}'}]
    assert output == {"role": "tool", "tool_call_id": "c2", "content": "2"}


@pytest.mark.parametrize(
    ("fields", "choice"),
    [
        ({}, ToolChoice()),
        ({"tool_choice": "none"}, ToolChoice(ToolMode.NONE)),
        ({"tool_choice": "auto", "parallel_tool_calls": False}, ToolChoice(parallel=False)),
        ({"tool_choice": "required"}, ToolChoice(ToolMode.REQUIRED)),
        ({"tool_choice": {"type": "function", "name": "f"}}, ToolChoice(ToolMode.REQUIRED, ("f",), parallel=False)),
        ({"tool_choice": {**ALLOWED, "mode": "required"}}, ToolChoice(ToolMode.REQUIRED, ("f",))),
        (
            {"tool_choice": {"type": "custom", "name": "crm.patch"}},
            ToolChoice(ToolMode.REQUIRED, ("crm.patch",), parallel=False),
        ),
    ],
)
def test_tool_choices(fields, choice):
    assert _parse(tools=[TOOL, CRM], **fields).call.tool_choice == choice


@pytest.mark.parametrize(
    ("wanted", "grammar"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, json_object_grammar()),
        (
            {"type": "json_schema", "name": "s", "schema": {"type": "object"}},
            json_schema_grammar({"type": "object"}),
        ),
    ],
)
def test_formats_are_grammars(wanted, grammar):
    request = _parse(text={"format": wanted})
    assert request.call.params.grammar == grammar
    assert request.shown.settings["text"]["format"] == wanted


def test_effort_goes_to_templates_that_read_it():
    effort = {"effort": "low", "summary": "auto"}
    assert _conversation(reasoning=effort, reads={"reasoning_effort"}).template_options == {"reasoning_effort": "low"}
    with pytest.raises(UnknownParameter) as refusal:
        _parse(reasoning=effort)
    assert refusal.value.param == "reasoning.effort"


@pytest.mark.parametrize(
    ("fields", "param", "kind"),
    [
        ({"input": []}, "input", BadRequest),
        ({"input": [3]}, "input.0", BadRequest),
        ({"input": [{"type": ["x"]}]}, "input.0", UnknownParameter),
        ({"input": [{"type": "web_search_call", "id": "w"}]}, "input.0", UnknownParameter),
        ({"input": [{"role": "tool", "content": "x"}]}, "input.0.role", BadRequest),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input.0.content", UnknownParameter),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input.0.content", BadRequest),
        ({"input": [_call(arguments=None)]}, "input.0.arguments", BadRequest),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input.0.id", BadRequest),
        ({"input": [{"id": "msg_1"}]}, "input.0.id", BadRequest),
        (
            {"input": [{"type": "reasoning", "encrypted_content": "else"}]},
            "input.0.encrypted_content",
            UnknownParameter,
        ),
        ({"previous_response_id": "resp_1"}, "previous_response_id", BadRequest),
        ({"tools": [{"type": "local_shell"}]}, "tools.0", UnknownParameter),
        ({"tools": [{**CRM, "tools": [TOOL, {"type": "function"}]}]}, "tools.0.tools.1.name", BadRequest),
        ({"tools": [{**CRM, "tools": HOSTED}]}, "tools.0.tools.0", BadRequest),
        ({"tools": [CRM, {**TOOL, "name": "crm.f"}]}, "tools", BadRequest),
        ({"tools": HOSTED, "tool_choice": {"type": "web_search"}}, "tool_choice", UnknownParameter),
        ({"input": [{"type": "custom_tool_call", "call_id": "c", "name": "p"}]}, "input.0.input", BadRequest),
        ({"tools": [{**TOOL, "defer_loading": True}]}, "tools.0.defer_loading", UnknownParameter),
        ({"tool_choice": {"type": "mcp"}}, "tool_choice", UnknownParameter),
        ({"tool_choice": {**ALLOWED, "mode": "auto"}}, "tool_choice.mode", UnknownParameter),
        ({"text": {"verbosity": "low"}}, "text.verbosity", UnknownParameter),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format", BadRequest),
        ({"reasoning": {"summary": "detailed"}}, "reasoning.summary", UnknownParameter),
        ({"stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation", UnknownParameter),
        ({"include": ["everything"]}, "include.0", BadRequest),
        ({"top_logprobs": 2}, None, BadRequest),
        ({"metadata": {"a": 1}}, "metadata.a", BadRequest),
    ],
)
def test_bad_fields_are_named(fields, param, kind):
    with pytest.raises(kind) as refusal:
        _parse(**fields)
    assert (refusal.value.param, type(refusal.value)) == (param, kind)
