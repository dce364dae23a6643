"""Every documented field of every model API is honoured or refused by name, as the tables say."""

from __future__ import annotations

from collections import Counter
from typing import Any

import httpx
import pytest
from model_bodies import ASKING, MINIMAL
from tests_support import begin, wait_for_state

from swarm.gateway.dialects.fields import Handling
from swarm.gateway.dialects.tables import TABLES

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
