"""What bodies of Anthropic's messages are understood as, and which are refused by name."""

from __future__ import annotations

import pytest

from swarm.errors import BadRequest, UnknownParameter
from swarm.gateway.dialects.anthropic.messages import RecordedReplies
from swarm.gateway.dialects.anthropic.request import (
    COUNT_FIELDS,
    MESSAGE_FIELDS,
    parse_count_request,
    parse_message_request,
)
from swarm.gateway.dialects.fields import json_schema_grammar
from swarm.rollout.model_request import SamplingDefaults
from swarm.types import SamplingParams, ToolChoice, ToolMode

DEFAULTS = SamplingDefaults(temperature=0.9, top_p=0.8, max_tokens=33, stop_token_ids=(2,))
MESSAGES = [{"role": "user", "content": "Reverse: ABC"}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
HOSTED = [
    {"type": "web_search_20250305", "name": "web_search", "max_uses": 5},
    {"type": "code_execution_20250825", "name": "code_execution", "allowed_callers": ["code_execution_20250825"]},
]
WEATHER = {"name": "weather", "description": "Of a city.", "input_schema": SCHEMA}


def parse(*, switches=(), turns=(), **fields):
    body = {"model": "nano", "messages": MESSAGES, "max_tokens": 5, **fields}
    body = {name: value for name, value in body.items() if value is not ...}
    return parse_message_request(body, DEFAULTS, RecordedReplies(turns), set(switches).__contains__)


def conversation(**fields):
    (only,) = parse(**fields).call.prompts
    return only


def chat(*messages):
    return list(conversation(messages=list(messages)).messages)


def test_a_silent_request_gets_the_defaults():
    request = parse()
    call = request.call

    assert call.params == SamplingParams(max_tokens=5, temperature=0.9, top_p=0.8, stop_token_ids=(2,))
    assert (call.model, call.choices, call.tool_choice) == ("nano", 1, ToolChoice())
    assert conversation().messages == tuple(MESSAGES)
    assert (conversation().tools, conversation().template_options) == ((), {})
    assert (request.stream, request.body.shows_thinking, request.ignored_fields) == (False, True, ())


def test_sampling_fields_are_taken_over():
    request = parse(temperature=1, top_p=0.5, top_k=7, max_tokens=9, stop_sequences=["a", "b"], stream=True)

    assert request.stream
    assert request.call.params == SamplingParams(9, 1.0, 0.5, 7, None, ("a", "b"), (2,))


def test_the_system_prompt_comes_first_with_its_blocks_in_order():
    blocks = [{"type": "text", "text": "one", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": " two"}]

    assert conversation(system="one").messages[0] == {"role": "system", "content": "one"}
    assert conversation(system=blocks).messages == ({"role": "system", "content": "one two"}, *MESSAGES)
    assert conversation(system="").messages[0] == {"role": "system", "content": ""}
    assert conversation(system=[]).messages == tuple(MESSAGES)


def test_attribution_is_left_out_of_the_prompt_and_named():
    attribution = "x-anthropic-billing-header: cc_version=2.1.37.0d9; cc_entrypoint=cli; cch=fa690;"
    request = parse(system=[{"type": "text", "text": attribution}, {"type": "text", "text": "Be brief."}])

    assert request.call.prompts[0].messages[0] == {"role": "system", "content": "Be brief."}
    assert request.ignored_fields == ("system.0",)
    mention = "x-anthropic-billing-header: a header\nthat I was asked about"
    assert conversation(system=mention).messages[0]["content"] == mention


def test_blocks_become_chat_messages_in_order():
    assert chat(
        {"role": "user", "content": [{"type": "text", "text": "Paris"}, {"type": "text", "text": " or Rome?"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Two cities.", "signature": "from elsewhere"},
                {"type": "text", "text": "Both."},
                {"type": "tool_use", "id": "a", "name": "weather", "input": {"city": "Paris"}},
                {"type": "tool_use", "id": "b", "name": "weather", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "12"}]},
                {"type": "tool_result", "tool_use_id": "b", "content": "no city", "is_error": True},
                {"type": "text", "text": "And?"},
            ],
        },
        {"role": "system", "content": "Answer now."},
        {"role": "assistant", "content": []},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a"}]},
    ) == [
        {"role": "user", "content": "Paris or Rome?"},
        {
            "role": "assistant",
            "content": "Both.",
            "reasoning_content": "Two cities.",
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}},
                {"id": "b", "type": "function", "function": {"name": "weather", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": "12"},
        {"role": "tool", "tool_call_id": "b", "content": "no city", "is_error": True},
        {"role": "user", "content": "And?"},
        {"role": "system", "content": "Answer now."},
        {"role": "assistant", "content": ""},
        {"role": "tool", "tool_call_id": "a", "content": ""},
    ]


def test_consecutive_messages_of_one_side_are_one_turn():
    assert chat(
        {"role": "user", "content": "one"},
        {"role": "user", "content": " two"},
        {"role": "assistant", "content": "three"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "weather", "input": {}}]},
        {"role": "user", "content": "four"},
    ) == [
        {"role": "user", "content": "one two"},
        {
            "role": "assistant",
            "content": "three",
            "tool_calls": [{"id": "a", "type": "function", "function": {"name": "weather", "arguments": "{}"}}],
        },
        {"role": "user", "content": "four"},
    ]


def test_redacted_thinking_is_accepted_and_named():
    blocks = [{"type": "redacted_thinking", "data": "x"}, {"type": "text", "text": "hi"}]
    request = parse(messages=[*MESSAGES, {"role": "assistant", "content": blocks}, *MESSAGES])

    assert request.call.prompts[0].messages[1] == {"role": "assistant", "content": "hi"}
    assert request.ignored_fields == ("messages.redacted_thinking",)


@pytest.mark.parametrize("kind", ["image", "document", "search_result", "container_upload", "server_tool_use", "new"])
@pytest.mark.parametrize("wrap", [False, True])
def test_other_blocks_are_refused_by_name(kind, wrap):
    block = {"type": kind, "source": {"type": "base64", "media_type": "image/png", "data": ""}}
    content = [{"type": "tool_result", "tool_use_id": "a", "content": [block]}] if wrap else [block]

    with pytest.raises(UnknownParameter, match=kind) as refusal:
        parse(messages=[{"role": "user", "content": content}])
    assert refusal.value.param.startswith("messages.0.content.0")


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ({"role": "user", "content": [{"type": "thinking", "thinking": "", "signature": "s"}]}, "thinking"),
        ({"role": "assistant", "content": [{"type": "tool_result", "tool_use_id": "a"}]}, "tool_result"),
        ({"role": "user", "content": []}, "needs content"),
        ({"role": "user", "content": ["hi"]}, "a content block must be an object"),
        ({"role": "tool", "content": "hi"}, "role"),
        ({"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": "{}"}]}, "input"),
    ],
)
def test_malformed_messages_are_refused(message, reason):
    with pytest.raises(BadRequest, match=reason):
        parse(messages=[message, *MESSAGES])


def test_tools_become_functions():
    tools = [{**WEATHER, "type": "custom", "cache_control": {"type": "ephemeral"}, "eager_input_streaming": True}]
    tools.append({"name": "now", "input_schema": {"type": "object"}, "input_examples": [{}]})

    assert conversation(tools=tools).tools == (
        {"type": "function", "function": {"name": "weather", "description": "Of a city.", "parameters": SCHEMA}},
        {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}, "input_examples": [{}]}},
    )


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, ToolChoice()),
        ({"type": "auto"}, ToolChoice()),
        ({"type": "auto", "disable_parallel_tool_use": True}, ToolChoice(parallel=False)),
        ({"type": "none"}, ToolChoice(ToolMode.NONE)),
        ({"type": "any"}, ToolChoice(ToolMode.REQUIRED)),
        ({"type": "any", "disable_parallel_tool_use": True}, ToolChoice(ToolMode.REQUIRED, parallel=False)),
        ({"type": "tool", "name": "weather"}, ToolChoice(ToolMode.REQUIRED, ("weather",))),
    ],
)
def test_spellings_of_tool_choice(choice, expected):
    assert parse(tools=[WEATHER], tool_choice=choice).call.tool_choice == expected


@pytest.mark.parametrize(
    "fields",
    [
        {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        {"output_format": {"type": "json_schema", "schema": SCHEMA}},
    ],
)
def test_an_output_format_is_a_grammar(fields):
    assert parse(**fields).call.params.grammar == json_schema_grammar(SCHEMA)


BUDGET = {"type": "enabled", "budget_tokens": 1024}


@pytest.mark.parametrize(
    ("thinking", "options", "ignored"),
    [
        ({"type": "disabled"}, {"enable_thinking": False}, ()),
        ({"type": "adaptive"}, {"enable_thinking": True}, ()),
        (BUDGET, {"enable_thinking": True}, ("thinking.budget_tokens",)),
    ],
)
def test_thinking_turns_the_switch_of_the_template(thinking, options, ignored):
    request = parse(thinking=thinking, max_tokens=2000, switches=["enable_thinking"])

    assert request.call.prompts[0].template_options == options
    assert request.ignored_fields == ignored


def test_without_a_switch_the_model_thinks_as_it_does():
    assert parse(thinking={"type": "disabled"}).ignored_fields == ()
    assert parse(thinking={"type": "adaptive"}).ignored_fields == ("thinking",)
    with pytest.raises(UnknownParameter, match="adaptive or disabled") as refusal:
        parse(thinking=BUDGET, max_tokens=2000)
    assert refusal.value.param == "thinking"


def test_effort_is_given_to_templates_that_read_it():
    def asked(effort, *switches):
        return conversation(output_config={"effort": effort}, switches=switches).template_options

    assert asked("low", "reasoning_effort") == {"reasoning_effort": "low"}
    assert asked("high") == {}
    with pytest.raises(UnknownParameter, match=r"output_config\.effort"):
        asked("low")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": 1.5}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"messages": [*MESSAGES, {"role": "assistant", "content": "CB"}]}, "messages"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools.0"),
        ({"tools": HOSTED, "tool_choice": {"type": "tool", "name": "web_search"}}, None),
        ({"tools": [{**WEATHER, "defer_loading": True}]}, "tools.0.defer_loading"),
        ({"tools": [{**WEATHER, "allowed_callers": ["code_execution_20250825"]}]}, "tools.0.allowed_callers"),
        ({"tools": [{**WEATHER, "strict": True}]}, None),
        ({"output_config": {"task_budget": {"type": "tokens", "total": 5}}}, "output_config.task_budget"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(fields, param):
    with pytest.raises(UnknownParameter) as refusal:
        parse(**fields)
    assert refusal.value.param == param


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": ...},
        {"messages": []},
        {"stop_sequences": [""]},
        {"thinking": {"type": "enabled"}, "max_tokens": 2000},
        {"thinking": BUDGET, "max_tokens": 1024},
        {"tool_choice": {"type": "any"}},
        {"tools": [WEATHER], "tool_choice": {"type": "tool"}},
        {"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "other"}},
        {"output_config": {"format": {"type": "text"}}},
        {"output_format": {"type": "json_schema", "schema": {}}, "output_config": {"format": {"type": "json_schema"}}},
    ],
)
def test_malformed_bodies_are_refused(fields):
    with pytest.raises(BadRequest):
        parse(**fields)


def test_hosted_tools_are_not_offered_and_named_as_ignored():
    request = parse(tools=[*HOSTED, WEATHER])
    [offered] = request.call.prompts[0].tools
    assert offered["function"]["name"] == WEATHER["name"]
    assert request.ignored_fields == ("tools.web_search_20250305", "tools.code_execution_20250825")


def test_strict_tools_are_accepted_where_a_call_is_forced():
    assert parse(tools=[{**WEATHER, "strict": True}], tool_choice={"type": "any"}).call.prompts[0].tools


def _documented(params):
    return {name for name in params.__annotations__ if name != "__extra_items__"}


def test_every_field_of_the_published_api_is_in_a_table():
    import anthropic.types as published
    import anthropic.types.beta as published_betas

    messages = _documented(published.message_create_params.MessageCreateParamsBase)
    betas = _documented(published_betas.message_create_params.MessageCreateParamsBase)
    assert (messages | betas | {"stream", "temperature", "top_p", "top_k"}) - MESSAGE_FIELDS.keys() == set()
    counts = _documented(published.message_count_tokens_params.MessageCountTokensParams)
    beta_counts = _documented(published_betas.message_count_tokens_params.MessageCountTokensParams)
    assert (counts | beta_counts) - COUNT_FIELDS.keys() == set()


def test_a_prompt_to_be_counted_is_that_of_the_message():
    fields = {"model": "nano", "messages": MESSAGES, "system": "Be brief.", "tools": [WEATHER]}
    counted = parse_count_request({**fields, "temperature": 3}, RecordedReplies(), lambda _: False)

    assert counted.conversation == conversation(**fields)
    assert counted.ignored_fields == ("temperature",)
