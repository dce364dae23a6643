"""The description of a request body names every field of its table, and allows what the server takes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from swarm.gateway.dialects.fields import Handling
from swarm.gateway.dialects.tables import BODIES, describe_bodies

MESSAGES = [{"role": "user", "content": "Reverse: ABC"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def schemas() -> dict[str, dict[str, Any]]:
    return {route: body["content"]["application/json"]["schema"] for route, body in describe_bodies().items()}


@pytest.mark.parametrize("route", BODIES)
def test_a_body_is_described_field_by_field_in_one_valid_schema(route: str, schemas: dict[str, dict[str, Any]]) -> None:
    schema, body = schemas[route], BODIES[route]
    Draft202012Validator.check_schema(schema)
    assert schema["properties"].keys() == body.fields.keys()
    assert "$ref" not in json.dumps(schema) and "$defs" not in json.dumps(schema)
    described = {*body.model.model_fields, *(name for other in body.others for name in other.model_fields)}
    typed = {name for name, field in body.fields.items() if field.handling in {Handling.HONOURED, Handling.EVAL_ONLY}}
    assert typed <= described
    assert all(schema["properties"][name].keys() - {"description"} for name in typed)


@pytest.mark.parametrize("route", BODIES)
def test_the_example_of_a_body_is_what_its_model_takes(route: str, schemas: dict[str, dict[str, Any]]) -> None:
    body = BODIES[route]
    body.model.model_validate(dict(body.example))
    Draft202012Validator(schemas[route]).validate(dict(body.example))


@pytest.mark.parametrize(
    ("route", "fields"),
    [
        ("/v1/chat/completions", {"stop": "zzz"}),
        ("/v1/chat/completions", {"stop": ["zzz"], "n": 2, "temperature": 0.5, "logit_bias": {"5": 1}}),
        ("/v1/chat/completions", {"tools": [TOOL], "tool_choice": "required", "service_tier": "auto", "audio": None}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]}),
        ("/v1/completions", {"prompt": [1, 2]}),
        ("/v1/completions", {"prompt": ["a", [1, 2]]}),
        ("/v1/responses", {"input": [{"role": "user", "content": "hi"}], "tool_choice": "none"}),
        ("/v1/messages", {"system": "be brief", "messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/messages", {"system": [{"type": "text", "text": "be brief"}], "stop_sequences": ["x"]}),
        ("/tokenize", {"prompt": None, "messages": MESSAGES}),
    ],
)
def test_what_the_server_takes_is_what_the_description_allows(
    route: str, fields: dict[str, Any], schemas: dict[str, dict[str, Any]]
) -> None:
    body = {**BODIES[route].example, **fields}
    BODIES[route].model.model_validate(body)
    Draft202012Validator(schemas[route]).validate(body)


@pytest.mark.parametrize(
    ("route", "fields"),
    [
        ("/v1/chat/completions", {"messages": []}),
        ("/v1/chat/completions", {"temperature": 3}),
        ("/v1/chat/completions", {"service_tier": "priority"}),
        ("/v1/chat/completions", {"audio": {"voice": "x"}}),
        ("/v1/completions", {"logprobs": 6}),
        ("/v1/messages", {"max_tokens": 0}),
        ("/detokenize", {"tokens": ["a"]}),
    ],
)
def test_what_the_server_refuses_by_value_the_description_does_not_allow(
    route: str, fields: dict[str, Any], schemas: dict[str, dict[str, Any]]
) -> None:
    assert not Draft202012Validator(schemas[route]).is_valid({**BODIES[route].example, **fields})
