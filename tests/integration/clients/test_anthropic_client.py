"""Anthropic's own Python library against a running server."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pytest
from anthropic import Anthropic, AsyncAnthropic, BadRequestError, beta_tool
from integration.clients.stage import Observed, Stage
from pydantic import BaseModel, ConfigDict

pytestmark = pytest.mark.timeout(400)

LIMIT_S = 20
PAINT = {
    "name": "paint",
    "description": "Paint a wall",
    "input_schema": {
        "type": "object",
        "properties": {"colour": {"type": "string", "enum": ["red", "green"]}},
        "required": ["colour"],
        "additionalProperties": False,
    },
}
CALL_RED = '<tool_call>\n{"name": "paint", "arguments": {"colour": "red"}}\n</tool_call>'
CALL_GREEN = '<tool_call>\n{"name": "paint", "arguments": {"colour": "green"}}\n</tool_call>'


class Verdict(BaseModel):
    model_config = ConfigDict(extra="forbid")

    colour: Literal["red", "green"]
    is_sure: bool


def client_of(episode: Observed) -> Anthropic:
    return Anthropic(base_url=episode.root_url, api_key=episode.api_key, timeout=LIMIT_S)


def user(content: Any) -> Any:
    return {"role": "user", "content": content}


def asked(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "default", "max_tokens": 100, "messages": [user(text)], **more}


def text_of(reply: Any) -> str:
    return "".join(block.text for block in reply.content if block.type == "text")


def test_a_conversation_is_recorded_as_one_line_of_tokens(nano: Stage) -> None:
    with nano.episode() as episode, client_of(episode) as client:
        messages = [user("Reverse: ABC")]
        settings: dict[str, Any] = {"model": "nano", "max_tokens": 100, "system": "You reverse words."}
        first = client.messages.create(messages=messages, extra_body={"temperature": 0}, **settings)
        messages += [{"role": "assistant", "content": first.content}, user([{"type": "text", "text": "Reverse: XY"}])]
        second = client.messages.create(messages=messages, stop_sequences=["!"], **settings)
    assert episode.parents == [None, 0]
    said = [text_of(reply) for reply in (first, second)]
    assert said == [reply["content"] for reply in episode.replies]
    told = [(reply.usage.input_tokens, reply.usage.output_tokens) for reply in (first, second)]
    assert told == [(len(turn.prompt_ids), len(turn.output_ids)) for turn in episode.turns]
    assert all(agent.startswith("Anthropic/Python") for agent in episode.user_agents)


def test_what_is_streamed_is_what_was_sampled(nano: Stage) -> None:
    with nano.episode() as episode, client_of(episode) as client:
        events = list(client.messages.create(**asked("Reverse: ABCD"), stream=True))
    [turn] = episode.turns
    pieces = [event.delta.text for event in events if event.type == "content_block_delta"]
    assert "".join(pieces) == turn.reply["content"]
    assert [event.type for event in events][-2:] == ["message_delta", "message_stop"]
    [usage] = [event.usage for event in events if event.type == "message_delta"]
    assert usage.output_tokens == len(turn.output_ids)


def test_the_streaming_helper_puts_the_same_reply_together(nano: Stage) -> None:
    with (
        nano.episode() as episode,
        client_of(episode) as client,
        client.messages.stream(**asked("Reverse: AB")) as stream,
    ):
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == text_of(final) == episode.replies[0]["content"]


def test_an_async_stream_is_read_to_its_end(nano: Stage) -> None:
    async def read(episode: Observed) -> str:
        async with (
            AsyncAnthropic(base_url=episode.root_url, api_key=episode.api_key, timeout=LIMIT_S) as client,
            client.messages.stream(**asked("Reverse: AB")) as stream,
        ):
            return await stream.get_final_text()

    with nano.episode() as episode:
        text = asyncio.run(read(episode))
    assert text == episode.replies[0]["content"]


@pytest.mark.parametrize("is_streamed", [False, True])
def test_an_agent_calls_tools_and_goes_on_with_what_they_said(scripted: Stage, is_streamed: bool) -> None:
    scripted.say(f"Let me see.\n{CALL_RED}\n{CALL_GREEN}", "Both are painted.")
    with scripted.episode() as episode, client_of(episode) as client:
        settings = asked("Paint both walls.", tools=[PAINT], tool_choice={"type": "auto"})
        if is_streamed:
            with client.messages.stream(**settings) as stream:
                first = stream.get_final_message()
        else:
            first = client.messages.create(**settings)
        calls = [block for block in first.content if block.type == "tool_use"]
        results = [{"type": "tool_result", "tool_use_id": call.id, "content": "done"} for call in calls]
        settings["messages"] += [{"role": "assistant", "content": first.content}, user(results)]
        last = client.messages.create(**settings)
    assert [call.input for call in calls] == [{"colour": "red"}, {"colour": "green"}]
    assert (first.stop_reason, last.stop_reason) == ("tool_use", "end_turn")
    assert (text_of(first), text_of(last)) == ("Let me see.", "Both are painted.")
    assert episode.parents == [None, 0]


def test_the_tool_runner_of_the_library_completes_an_episode(scripted: Stage) -> None:
    @beta_tool
    def paint(colour: str) -> str:
        """Paint a wall."""
        return f"{colour} now"

    scripted.say(CALL_RED, "Done.")
    with scripted.episode() as episode, client_of(episode) as client:
        final = client.beta.messages.tool_runner(**asked("Paint it red."), tools=[paint]).until_done()
    assert text_of(final) == "Done."
    assert episode.parents == [None, 0]
    assert episode.turns[1].messages[-1]["content"] == "red now"


@pytest.mark.parametrize(
    "choice", [{"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "paint"}]
)
def test_a_model_that_must_call_a_tool_calls_it(nano: Stage, choice: Any) -> None:
    with nano.episode() as episode, client_of(episode) as client:
        reply = client.messages.create(**asked("Which colour?", max_tokens=300), tools=[PAINT], tool_choice=choice)
    [call] = reply.content
    assert call.type == "tool_use"
    assert call.input["colour"] in {"red", "green"}
    assert [each["function"]["name"] for each in episode.replies[0]["tool_calls"]] == ["paint"]


def test_parse_returns_the_object_that_the_grammar_allowed(nano: Stage) -> None:
    with nano.episode() as episode, client_of(episode) as client:
        reply = client.messages.parse(**asked("Which colour?", max_tokens=400), output_format=Verdict)
    assert reply.parsed_output == Verdict.model_validate_json(episode.replies[0]["content"])


def test_tokens_are_counted_as_they_are_then_sampled_from(nano: Stage) -> None:
    with nano.episode() as episode, client_of(episode) as client:
        settings = {"model": "default", "messages": [user("Reverse: ABC")], "system": "You reverse words."}
        counted = client.messages.count_tokens(**settings)
        client.messages.create(**settings, max_tokens=50)
    assert counted.input_tokens == len(episode.turns[0].prompt_ids)


def test_a_refused_field_raises_the_library_s_own_error_and_leaves_no_turn(nano: Stage) -> None:
    with nano.episode() as episode, client_of(episode) as client:
        with pytest.raises(BadRequestError, match="top_k") as refusal:
            client.messages.create(**asked("Hello"), extra_body={"top_k": 5})
        client.messages.create(**asked("Hello"))
    assert refusal.value.body["error"]["type"] == "invalid_request_error"
    assert len(episode.turns) == 1


def test_the_environment_of_an_episode_is_all_that_a_client_needs(nano: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    with nano.episode() as episode:
        for name, value in episode.credentials.env().items():
            monkeypatch.setenv(name, value)
        with Anthropic() as client:
            reply = client.messages.create(**asked("Reverse: AB"))
    assert text_of(reply) == episode.replies[0]["content"]


def test_a_field_that_nobody_knows_is_named_to_the_client(nano: Stage) -> None:
    with nano.episode(ignored=frozenset({"flux"})) as episode, client_of(episode) as client:
        reply = client.messages.with_raw_response.create(**asked("Reverse: AB"), extra_body={"flux": 1})
    assert reply.headers["x-ignored-fields"] == "flux"
    assert text_of(reply.parse()) == episode.replies[0]["content"]


def test_the_model_of_an_episode_is_listed(nano: Stage) -> None:
    with nano.episode() as episode, client_of(episode) as client:
        assert [model.id for model in client.models.list()] == [client.models.retrieve("nano").id]
        client.messages.create(**asked("Hello"))


def test_an_episode_that_is_named_by_its_path_needs_no_key(nano: Stage) -> None:
    with (
        nano.episode() as episode,
        Anthropic(base_url=episode.credentials.path_base_url.removesuffix("/v1"), api_key="none") as client,
    ):
        client.messages.create(**asked("Hello"), timeout=LIMIT_S)
    assert len(episode.turns) == 1
