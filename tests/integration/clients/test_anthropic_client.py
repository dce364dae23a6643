"""What only Anthropic's API has: its errors, its token counts, its tool runner, and the requests of Claude Code."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from integration.clients.stage import Observed, Stage

if TYPE_CHECKING:
    from anthropic import Anthropic

pytestmark = pytest.mark.timeout(400)

LIMIT_S = 20
USER: Any = {"role": "user", "content": "Hello"}
BODY: dict[str, Any] = {"model": "default", "messages": [USER], "max_tokens": 256}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER: Any = {"name": "weather", "description": "Of a city.", "input_schema": SCHEMA}
# Spaced as no serializer would, with a number that a client may write otherwise.
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city":"Paris",  "days": 2.0}}\n</tool_call>'


@pytest.fixture(scope="module")
def anthropic() -> Any:
    import anthropic

    return anthropic


def client_of(episode: Observed, **options: Any) -> Anthropic:
    import anthropic

    options = {"api_key": episode.api_key, "base_url": episode.root_url, "max_retries": 0, **options}
    return anthropic.Anthropic(timeout=LIMIT_S, **options)


def test_the_tool_runner_of_the_library_completes_an_episode(scripted: Stage, anthropic: Any) -> None:
    @anthropic.beta_tool
    def weather(city: str, days: float) -> str:
        """Of a city."""
        return f"12 degrees in {city}"

    scripted.say(CALL, "12 degrees")
    with scripted.episode() as episode, client_of(episode) as client:
        # Which asks for a thread first, and goes on without one as it is told to.
        final = client.beta.messages.tool_runner(**BODY, tools=[weather]).until_done()
    assert final.content[0].text == "12 degrees"
    assert (episode.parents, episode.samples) == ([None, 0], 1)
    assert episode.turns[1].messages[-1]["content"] == "12 degrees in Paris"


def test_counted_tokens_are_those_of_the_message(scripted: Stage) -> None:
    with scripted.episode() as episode, client_of(episode) as client:
        prompt: dict[str, Any] = {"model": "default", "messages": [USER], "system": "Be brief.", "tools": [WEATHER]}
        for line in (f"Let me see. {CALL}", "12"):
            counted = client.messages.count_tokens(**prompt)
            scripted.say(line)
            message = client.messages.create(**prompt, max_tokens=256)
            assert counted.input_tokens == message.usage.input_tokens
            results = [
                {"type": "tool_result", "tool_use_id": each.id} for each in message.content if each.type == "tool_use"
            ]
            prompt["messages"] += [
                {"role": "assistant", "content": message.content},
                {"role": "user", "content": results},
            ]
        beta = client.beta.messages.count_tokens(model="default", messages=[USER])
    assert 0 < beta.input_tokens < counted.input_tokens
    assert (episode.parents, episode.samples) == ([None, 0], 1)


def test_errors_are_those_of_the_api(scripted: Stage, anthropic: Any) -> None:
    from anthropic.types.shared import ErrorResponse

    def refused(expected: Any, sdk: Any, **body: Any) -> Any:
        with pytest.raises(expected) as refusal:
            sdk.messages.create(**{**BODY, **body})
        error = refusal.value
        assert ErrorResponse.model_validate(error.body, strict=True).request_id == error.request_id
        return error

    image: Any = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
    long: Any = {"role": "user", "content": "Hello " * 9000}
    with scripted.episode() as episode, client_of(episode) as client:
        with client_of(episode, api_key="sk-swarm-no") as stranger:
            assert refused(anthropic.AuthenticationError, stranger).type == "authentication_error"
        for body, word in (
            ({"messages": [{"role": "user", "content": [image]}]}, "image"),
            ({"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2000}, "thinking"),
            ({"messages": [long]}, "prompt is too long"),
        ):
            error = refused(anthropic.BadRequestError, client, **body)
            assert error.type == "invalid_request_error" and word in error.message
        malformed = httpx.post(
            f"{episode.base_url}/messages", headers={"x-api-key": episode.api_key}, content=b"{", timeout=LIMIT_S
        )
        assert malformed.json()["error"]["type"] == "invalid_request_error"
        client.messages.create(**BODY)
    # Final: the SDK, which repeats a 409 by itself, is told not to.
    with client_of(episode, max_retries=3) as late:
        assert refused(anthropic.ConflictError, late).type == "invalid_request_error"


def test_claude_code_keeps_one_training_sequence(scripted: Stage) -> None:
    """The body is that of version 2.1.197, and a field of the future."""
    scripted.say(CALL, "12 degrees")
    messages: list[Any] = [
        {"role": "user", "content": [{"type": "text", "text": "<system-reminder>"}, {"type": "text", "text": "Hello"}]},
        {"role": "system", "content": "Available agent types"},
    ]
    ignored = frozenset({"not_yet_known", "system.0", "thinking"})
    with scripted.episode(ignored=ignored) as episode, httpx.Client(base_url=episode.root_url) as http:
        http.headers = {
            "authorization": f"Bearer {episode.api_key}",
            "anthropic-version": "2023-06-01",
            "anthropic-beta": "claude-code-20250219,mid-conversation-system-2026-04-07,not-yet-known-2027-01-01",
            "x-claude-code-session-id": "s",
        }
        for number in range(2):
            events = claude_codes_request(http, number, messages)
            call = next(each["content_block"] for each in events if each["type"] == "content_block_start")
            if call["type"] == "tool_use":
                written = next(
                    each["delta"]["partial_json"] for each in events if each["type"] == "content_block_delta"
                )
                # JSON.stringify leaves no spaces, and no fraction of a whole number.
                call["input"] = json.loads(written) | {"days": 2}
                result = {"type": "tool_result", "tool_use_id": call["id"], "content": "12", "is_error": False}
                messages += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
        counted = http.post("/v1/messages/count_tokens?beta=true", json={"model": "default", "messages": messages})
        assert counted.json()["input_tokens"] > 0
        assert http.head("/api/hello").status_code == 404
        listed = http.get("/v1/models?limit=1000")
        assert [each["type"] for each in listed.json()["data"]] == ["model"]
    assert (episode.parents, episode.samples) == ([None, 0], 1)


def claude_codes_request(http: httpx.Client, number: int, messages: list[Any]) -> list[dict[str, Any]]:
    system = [
        {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1.100; cch={number}a1b2;"},
        {"type": "text", "text": "You are Claude Code.", "cache_control": {"type": "ephemeral"}},
    ]
    body = {
        **{"model": "default", "max_tokens": 32000, "stream": True, "metadata": {"user_id": "u"}},
        **{"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}, "not_yet_known": {"a": 1}},
        **{"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}},
        **{"system": system, "messages": messages, "tools": [{**WEATHER, "cache_control": {"type": "ephemeral"}}]},
    }
    reply = http.post("/v1/messages?beta=true", json=body)
    assert reply.status_code == 200, reply.text
    return [json.loads(line.removeprefix("data: ")) for line in reply.text.splitlines() if line[:5] == "data:"]
