"""The reference agent against a real HTTP server that speaks the OpenAI chat protocol."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing

import httpx
import pytest
from scripted_server import Canned, ScriptedServer, chat_reply

from swarm.errors import RolloutPaused, ServerUnreachable, SwarmError
from swarm.tasks import run_agent, task_family


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with closing(ScriptedServer()) as running:
        yield running


@pytest.fixture
def http() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=60) as client:
        yield client


def attempt(server, family, http, **options):
    task = family.tasks("train", 1)[0]
    return run_agent(family, task, base_url=f"{server.url}/v1", api_key="key-1", http=http, **options)


def test_a_single_turn_sends_the_query_and_returns_the_reward(server, http):
    family = task_family("reverse")
    task = family.tasks("train", 1)[0]
    server.answers.append(chat_reply(content=task.metadata["answer"]))
    output = attempt(server, family, http, temperature=0.0)
    assert (output.reward, output.is_success) == (1.0, True)
    request = server.heard[0]
    assert (request.path, request.headers["Authorization"]) == ("/v1/chat/completions", "Bearer key-1")
    assert request.body == {
        "model": "default",
        "max_tokens": 12,
        "temperature": 0.0,
        "messages": [{"role": "user", "content": task.main_query}],
    }


def test_temperature_is_left_to_the_server_unless_given(server, http):
    server.answers.append(chat_reply(content="?"))
    assert attempt(server, task_family("reverse"), http).reward == 0.0
    assert "temperature" not in server.heard[0].body


def test_tool_calls_are_answered_and_history_repeats_the_server_s_own_values(server, http):
    family = task_family("calc")
    metadata = family.tasks("train", 1)[0].metadata
    arguments = json.dumps({"expression": metadata["expression"]})
    calls = [{"id": "call_9", "type": "function", "function": {"name": "calculator", "arguments": arguments}}]
    server.answers.append(chat_reply(tool_calls=calls, refusal=None))
    server.answers.append(chat_reply(content=metadata["answer"]))
    assert attempt(server, family, http).reward == 1.0
    first, second = (request.body for request in server.heard)
    assert first["tools"] == second["tools"] == json.loads(json.dumps(family.tools))
    assert second["messages"][1:] == [
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "call_9", "content": metadata["answer"]},
    ]


def test_each_request_of_a_conversation_extends_the_one_before(server, http):
    family = task_family("chain")
    for reply in ("1", "2", str(sum(family.tasks("train", 1)[0].metadata["terms"]))):
        server.answers.append(chat_reply(content=reply))
    output = attempt(server, family, http)
    assert (output.reward, output.metadata["turns"]) == (1.0, 3)
    sent = [request.body["messages"] for request in server.heard]
    assert [len(messages) for messages in sent] == [1, 3, 5]
    assert sent[2][:3] == sent[1]
    assert sent[1][:1] == sent[0]


def test_an_error_reply_raises_its_domain_error_and_is_never_a_reward(server, http):
    server.script(Canned(503, {"error": {"message": "the batch is full", "code": "rollout_paused"}}))
    with pytest.raises(RolloutPaused, match="the batch is full"):
        attempt(server, task_family("reverse"), http)


@pytest.mark.parametrize(
    "reply", [Canned(502, b"<html>bad gateway</html>"), Canned(200, {"choices": []}), Canned(500, {"error": "x"})]
)
def test_a_reply_that_is_no_completion_raises(server, http, reply):
    server.script(reply)
    with pytest.raises(SwarmError, match="without a chat completion"):
        attempt(server, task_family("reverse"), http)


def test_no_server_raises_without_a_shared_client_too(server):
    family = task_family("reverse")
    task = family.tasks("train", 1)[0]
    server.answers.append(chat_reply(content=task.metadata["answer"]))
    assert run_agent(family, task, base_url=f"{server.url}/v1", api_key="k").reward == 1.0
    with pytest.raises(ServerUnreachable, match="is the server running"):
        run_agent(family, task, base_url="http://127.0.0.1:1/v1", api_key="k")
