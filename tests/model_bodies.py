"""Bodies for every route of the model: a plain one, one for each honoured field, and one with everything."""

from __future__ import annotations

from typing import Any

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}

MINIMAL: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "default", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4},
    "/v1/completions": {"model": "default", "prompt": "hi", "max_tokens": 4},
    "/v1/responses": {"model": "default", "input": "hi", "max_output_tokens": 4},
    "/v1/messages": {"model": "default", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 256},
    "/v1/messages/count_tokens": {"model": "default", "messages": [{"role": "user", "content": "hi"}]},
    "/tokenize": {"prompt": "hi"},
    "/detokenize": {"tokens": [5]},
}
"""By route: a body that asks for nothing special."""

SAMPLING: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 0.5},
    "stream": {"stream": False},
    "stop_token_ids": {"stop_token_ids": [5]},
    "ignore_eos": {"ignore_eos": True},
    "structured_outputs": {"structured_outputs": {"regex": "a+"}},
    "top_p": {"top_p": 0.5},
    "top_k": {"top_k": 5},
    "min_p": {"min_p": 0.1},
    "min_tokens": {"min_tokens": 1},
    "presence_penalty": {"presence_penalty": 0.5},
    "frequency_penalty": {"frequency_penalty": 0.5},
    "repetition_penalty": {"repetition_penalty": 1.1},
    "logit_bias": {"logit_bias": {"5": 1}},
    "seed": {"seed": 7},
    "stop": {"stop": ["zzz"]},
}
OPENAI_SAMPLING = {
    "n": {"n": 2},
    "stream_options": {"stream": True, "stream_options": {"include_usage": True}},
    "response_format": {"response_format": {"type": "text"}},
    "return_token_ids": {"return_token_ids": True},
}
FLAT_TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}
OWN_TOOL = {"name": "f", "input_schema": {"type": "object"}}
FORMAT = {"type": "json_schema", "schema": {"type": "object"}}
ANTHROPICS_PROMPT: dict[str, dict[str, Any]] = {
    "system": {"system": [{"type": "text", "text": "Be brief."}]},
    "tools": {"tools": [OWN_TOOL]},
    "tool_choice": {"tools": [OWN_TOOL], "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
    "thinking": {"thinking": {"type": "disabled"}},
    "output_config": {"output_config": {"format": FORMAT, "effort": "high"}},
    "output_format": {"output_format": FORMAT},
}

ASKING: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        **SAMPLING,
        **OPENAI_SAMPLING,
        "max_completion_tokens": {"max_tokens": None, "max_completion_tokens": 3},
        "logprobs": {"logprobs": True},
        "top_logprobs": {"logprobs": True, "top_logprobs": 2},
        "tools": {"tools": [TOOL]},
        "tool_choice": {"tools": [TOOL], "tool_choice": "required", "max_tokens": 64},
        "parallel_tool_calls": {"tools": [TOOL], "parallel_tool_calls": False},
    },
    "/v1/completions": {
        **SAMPLING,
        **OPENAI_SAMPLING,
        "best_of": {"n": 2, "best_of": 2},
        "echo": {"echo": True},
        "logprobs": {"logprobs": 2},
        "return_tokens_as_token_ids": {"logprobs": 0, "return_tokens_as_token_ids": True},
    },
    "/v1/responses": {
        **SAMPLING,
        "instructions": {"instructions": "Be brief."},
        "previous_response_id": {"previous_response_id": ""},
        "store": {"store": False},
        "tools": {"tools": [FLAT_TOOL]},
        "tool_choice": {"tools": [FLAT_TOOL], "tool_choice": "required", "max_output_tokens": 64},
        "parallel_tool_calls": {"tools": [FLAT_TOOL], "parallel_tool_calls": False},
        "text": {"text": {"format": {"type": "json_object"}}},
        "reasoning": {"reasoning": {}},
        "include": {"include": ["message.output_text.logprobs"]},
        "top_logprobs": {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
        "stream_options": {"stream": True, "stream_options": {"include_obfuscation": False}},
    },
    "/v1/messages": {
        **ANTHROPICS_PROMPT,
        "stop_sequences": {"stop_sequences": ["zzz"]},
        **{name: SAMPLING[name] for name in ("stream", "temperature", "top_p", "top_k")},
    },
    "/v1/messages/count_tokens": ANTHROPICS_PROMPT,
    "/tokenize": {
        "model": {"model": "default"},
        "messages": {"prompt": None, "messages": [{"role": "user", "content": "hi"}]},
        "tools": {"prompt": None, "messages": [{"role": "user", "content": "hi"}], "tools": [TOOL]},
        "add_generation_prompt": {
            "prompt": None,
            "messages": [{"role": "user", "content": "hi"}],
            "add_generation_prompt": False,
        },
        "return_token_strs": {"return_token_strs": True},
    },
    "/detokenize": {"model": {"model": "default"}},
}
"""By route and honoured field: what it takes to ask for it."""

CALL = {"id": "call00000", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
USER = {"role": "user", "content": [{"type": "text", "text": "u"}]}
CONVERSATIONS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "messages": [
            {"role": "system", "content": "s"},
            USER,
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "call00000", "content": "1"},
            {"role": "user", "content": "hi", "name": "n"},
        ],
        "reasoning_effort": "low",
        "metadata": {"a": "b"},
    },
    "/v1/completions": {"prompt": ["Once", [5, 6]], "suffix": "", "add_special_tokens": False},
    "/v1/messages": {
        "messages": [
            USER,
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "1"}]},
        ],
        "metadata": {"user_id": "u"},
    },
    "/v1/responses": {
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "u"}]},
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "1"},
        ],
        "reasoning": {"effort": "low"},
    },
}
CONVERSATIONS["/v1/messages/count_tokens"] = CONVERSATIONS["/v1/messages"]


def rich_body(route: str) -> dict[str, Any]:
    """A body with every kind of thing it may hold. Not all of it goes together."""
    asked = {name: value for fields in ASKING[route].values() for name, value in fields.items() if value is not None}
    return {**MINIMAL[route], **asked, **CONVERSATIONS.get(route, {}), "stream": False}
