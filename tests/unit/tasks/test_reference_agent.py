"""The reference agent against a real HTTP server that speaks the OpenAI chat protocol."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import httpx
import pytest

from swarm.errors import RolloutPaused, ServerUnreachable, SwarmError
from swarm.tasks import run_agent, task_family


class RepliesServer(ThreadingHTTPServer):
    """Answers each request with the next of `replies` (status, body) and keeps what was asked."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.replies = []
        self.requests = []

    @property
    def base_url(self):
        return f"http://127.0.0.1:{self.server_port}/v1"

    def will_say(self, **message):
        self.replies.append((200, {"choices": [{"message": {"role": "assistant", "content": None, **message}}]}))


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append({"path": self.path, "key": self.headers["Authorization"], "body": body})
        status, reply = self.server.replies.pop(0)
        payload = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    def log_message(self, format, *args):
        pass


@pytest.fixture
def server() -> Iterator[RepliesServer]:
    with RepliesServer() as running:
        thread = Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join(timeout=60)


@pytest.fixture
def http() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=60) as client:
        yield client


def attempt(server, family, http, **options):
    task = family.tasks("train", 1)[0]
    return run_agent(family, task, base_url=server.base_url, api_key="key-1", http=http, **options)


def test_a_single_turn_sends_the_query_and_returns_the_reward(server, http):
    family = task_family("reverse")
    task = family.tasks("train", 1)[0]
    server.will_say(content=task.metadata["answer"])
    output = attempt(server, family, http, temperature=0.0)
    assert (output.reward, output.is_success) == (1.0, True)
    request = server.requests[0]
    assert (request["path"], request["key"]) == ("/v1/chat/completions", "Bearer key-1")
    assert request["body"] == {
        "model": "default",
        "max_tokens": 12,
        "temperature": 0.0,
        "messages": [{"role": "user", "content": task.main_query}],
    }


def test_temperature_is_left_to_the_server_unless_given(server, http):
    server.will_say(content="?")
    assert attempt(server, task_family("reverse"), http).reward == 0.0
    assert "temperature" not in server.requests[0]["body"]


def test_tool_calls_are_answered_and_history_repeats_the_server_s_own_values(server, http):
    family = task_family("calc")
    metadata = family.tasks("train", 1)[0].metadata
    arguments = json.dumps({"expression": metadata["expression"]})
    calls = [{"id": "call_9", "type": "function", "function": {"name": "calculator", "arguments": arguments}}]
    server.will_say(tool_calls=calls, refusal=None)
    server.will_say(content=metadata["answer"])
    assert attempt(server, family, http).reward == 1.0
    first, second = (request["body"] for request in server.requests)
    assert first["tools"] == second["tools"] == json.loads(json.dumps(family.tools))
    assert second["messages"][1:] == [
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "call_9", "content": metadata["answer"]},
    ]


def test_each_request_of_a_conversation_extends_the_one_before(server, http):
    family = task_family("chain")
    for reply in ("1", "2", str(sum(family.tasks("train", 1)[0].metadata["terms"]))):
        server.will_say(content=reply)
    output = attempt(server, family, http)
    assert (output.reward, output.metadata["turns"]) == (1.0, 3)
    sent = [request["body"]["messages"] for request in server.requests]
    assert [len(messages) for messages in sent] == [1, 3, 5]
    assert sent[2][:3] == sent[1]
    assert sent[1][:1] == sent[0]


def test_an_error_reply_raises_its_domain_error_and_is_never_a_reward(server, http):
    server.replies.append((503, {"error": {"message": "the batch is full", "code": "rollout_paused"}}))
    with pytest.raises(RolloutPaused, match="the batch is full"):
        attempt(server, task_family("reverse"), http)


@pytest.mark.parametrize("reply", [(502, b"<html>bad gateway</html>"), (200, {"choices": []}), (500, {"error": "x"})])
def test_a_reply_that_is_no_completion_raises(server, http, reply):
    server.replies.append(reply)
    with pytest.raises(SwarmError, match="without a chat completion"):
        attempt(server, task_family("reverse"), http)


def test_no_server_raises_without_a_shared_client_too(server):
    family = task_family("reverse")
    task = family.tasks("train", 1)[0]
    server.will_say(content=task.metadata["answer"])
    assert run_agent(family, task, base_url=server.base_url, api_key="k").reward == 1.0
    with pytest.raises(ServerUnreachable, match="is the server running"):
        run_agent(family, task, base_url="http://127.0.0.1:1/v1", api_key="k")


def test_the_tasks_load_no_heavy_package():
    code = (
        "import swarm.tasks, sys; print([m for m in ('torch', 'numpy', 'transformers', 'fastapi') if m in sys.modules])"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True).stdout
    assert output.strip() == "[]"
