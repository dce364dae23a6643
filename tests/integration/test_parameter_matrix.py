"""Every documented field of every model API is honoured or refused by name, as the tables say."""

from __future__ import annotations

from collections import Counter
from typing import Any

import httpx
import pytest
from tests_support import begin, wait_for_state

from swarm.gateway.dialects.fields import Handling
from swarm.gateway.dialects.tables import TABLES

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

LABELS = {"metadata": {"a": "b"}, "max_tool_calls": 1, "stream_interval": 2}
"""Where a label is no text."""

BY_TEMPLATE = {"reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": False}}
"""Honoured only where the chat template reads them, as the bundled model's does not."""


def test_every_field_of_the_published_apis_is_in_the_table() -> None:
    import openai.types as published

    bodies: dict[str, Any] = {
        "/v1/chat/completions": published.chat.completion_create_params.CompletionCreateParamsBase,
        "/v1/completions": published.completion_create_params.CompletionCreateParamsBase,
        "/v1/responses": published.responses.response_create_params.ResponseCreateParamsBase,
    }
    for route, body in bodies.items():
        assert ({*body.__annotations__} | {"stream"}) - TABLES[route].keys() == set(), route


@pytest.mark.parametrize("route", MINIMAL)
def test_every_honoured_field_is_asked_for_below(route: str) -> None:
    honoured = {
        name for name, field in TABLES[route].items() if field.handling in {Handling.HONOURED, Handling.EVAL_ONLY}
    }
    assert honoured - MINIMAL[route].keys() - BY_TEMPLATE.keys() == ASKING[route].keys()


@pytest.fixture(scope="module")
def http(start_shared_server: Any) -> Any:
    server = start_shared_server()
    with httpx.Client(base_url=server.url, timeout=60) as client:
        put = client.put("/v1/swarm/job", json={"job": {"project_name": "matrix"}})
        assert put.status_code == 200, put.text
        client.post("/v1/swarm/engine/start", json={})
        wait_for_state(client, "ROLLING")
        yield client


@pytest.mark.parametrize("route", MINIMAL)
def test_every_field_is_honoured_or_refused_by_name_on_the_wire(route: str, http: httpx.Client) -> None:
    ignored_before = Counter(http.get("/v1/swarm/status").json()["ignored_fields"])
    episodes = {kind: begin(http, episode_type=kind) for kind in ("train", "eval")}

    def ask(kind: str, **fields: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {episodes[kind]['api_key']}"}
        if "previous_response_id" in fields:
            before = http.post(route, headers=headers, json=MINIMAL[route])
            fields = {"previous_response_id": before.json()["id"]}
        return http.post(route, headers=headers, json={**MINIMAL[route], **fields})

    for name, fields in ASKING[route].items():
        reply = ask("eval", **fields)
        assert reply.status_code == 200, f"{name}: {reply.text}"
        assert "x-ignored-fields" not in reply.headers, name
        assert "error" not in reply.text[:9], reply.text
        trained = ask("train", **fields)
        is_refused = TABLES[route][name].handling is Handling.EVAL_ONLY
        assert trained.status_code == (400 if is_refused else 200), f"{name}: {trained.text}"
        if is_refused:
            assert name in trained.json()["error"]["message"]
    for name, field in TABLES[route].items():
        if field.handling is Handling.NEUTRAL_ONLY:
            refusal = ask("eval", **{name: [{"asked": "for something"}]})
            assert refusal.status_code == 400, refusal.text
            assert refusal.json()["error"].get("param", name) == name and name in refusal.text
            for neutral in field.neutral:
                assert ask("eval", **{name: neutral}).status_code == 200, name
        elif field.handling is Handling.LABEL:
            assert ask("eval", **{name: LABELS.get(name, "x")}).status_code == 200, name
    unknown = ask("eval", zebra=1, **{"añb": 2})
    assert unknown.headers["x-ignored-fields"] == "a\\xf1b,zebra"
    ignored = Counter(http.get("/v1/swarm/status").json()["ignored_fields"])
    assert ignored - ignored_before == {"a\\xf1b": 1, "zebra": 1}


def test_what_the_chat_template_does_not_read_is_refused_by_name(http: httpx.Client) -> None:
    headers = {"authorization": f"Bearer {begin(http)['api_key']}"}
    for name, value in BY_TEMPLATE.items():
        body = {**MINIMAL["/v1/chat/completions"], name: value}
        refusal = http.post("/v1/chat/completions", headers=headers, json=body)
        assert refusal.status_code == 400
        asked = name if isinstance(value, str) else next(iter(value))
        assert refusal.json()["error"]["param"] == asked
