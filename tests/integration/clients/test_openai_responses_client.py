"""The Responses API of OpenAI's own Python library against a running server."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Literal

import pytest
from integration.clients.stage import Observed, Stage
from openai import AsyncOpenAI, BadRequestError, OpenAI
from pydantic import BaseModel, ConfigDict

pytestmark = pytest.mark.timeout(400)

LIMIT_S = 20
PAINT = {
    "type": "function",
    "name": "paint",
    "description": "Paint a wall",
    "strict": True,
    "parameters": {
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


def client_of(episode: Observed) -> OpenAI:
    return OpenAI(base_url=episode.base_url, api_key=episode.api_key, timeout=LIMIT_S)


def test_a_conversation_is_recorded_as_one_line_of_tokens(nano: Stage) -> None:
    with nano.episode() as episode, client_of(episode) as client:
        settings: dict[str, Any] = {"model": "default", "instructions": "You reverse words.", "max_output_tokens": 60}
        history: list[Any] = [{"role": "user", "content": "Reverse: ABC"}]
        first = client.responses.create(input=history, temperature=0, **settings)
        history += [*first.output, {"role": "user", "content": "Reverse: XY"}]
        second = client.responses.create(input=history, **settings)
    assert episode.parents == [None, 0]
    assert [first.output_text, second.output_text] == [reply["content"] for reply in episode.replies]
    assert first.usage is not None
    assert (first.usage.input_tokens, first.usage.output_tokens) == (
        len(episode.turns[0].prompt_ids),
        len(episode.turns[0].output_ids),
    )


def test_a_conversation_that_the_server_remembers_is_one_line_as_well(nano: Stage) -> None:
    with nano.episode() as episode, client_of(episode) as client:
        first = client.responses.create(model="default", input="Reverse: ABC")
        client.responses.create(model="default", input="Reverse: XY", previous_response_id=first.id)
        assert client.responses.retrieve(first.id).output_text == first.output_text
    assert episode.parents == [None, 0]
    assert [message["content"] for message in episode.turns[1].messages] == [
        "Reverse: ABC",
        first.output_text,
        "Reverse: XY",
    ]


def test_log_probabilities_are_told_if_asked_for(nano: Stage) -> None:
    with nano.episode() as episode, client_of(episode) as client:
        client.responses.create(
            model="default", input="Reverse: AB", include=["message.output_text.logprobs"], top_logprobs=2, store=False
        )
    assert len(episode.turns) == 1


def test_what_is_streamed_is_what_was_sampled(nano: Stage) -> None:
    with nano.episode() as episode, client_of(episode) as client:
        events = list(client.responses.create(model="default", input="Reverse: ABCD", stream=True))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == episode.replies[0]["content"]
    assert (events[0].type, events[-1].type) == ("response.created", "response.completed")
    assert [event.sequence_number for event in events] == list(range(len(events)))


def test_the_streaming_helper_puts_the_same_reply_together(nano: Stage) -> None:
    with (
        nano.episode() as episode,
        client_of(episode) as client,
        client.responses.stream(model="default", input="Reverse: AB") as stream,
    ):
        kinds = {event.type for event in stream}
        final = stream.get_final_response()
    assert "response.output_text.done" in kinds
    assert final.output_text == episode.replies[0]["content"]


def test_concurrent_calls_of_an_async_client_are_turns_of_their_own(nano: Stage) -> None:
    async def ask_all(episode: Observed) -> list[str]:
        async with AsyncOpenAI(base_url=episode.base_url, api_key=episode.api_key, timeout=LIMIT_S) as client:
            calls = [client.responses.create(model="default", input=f"Reverse: {word}") for word in ("AB", "CD")]
            return [response.output_text for response in await asyncio.gather(*calls)]

    with nano.episode() as episode:
        replies = asyncio.run(ask_all(episode))
    recorded = {turn.messages[0]["content"]: turn.reply["content"] for turn in episode.turns}
    assert replies == [recorded["Reverse: AB"], recorded["Reverse: CD"]]


@pytest.mark.parametrize("is_streamed", [False, True])
def test_an_agent_calls_tools_and_goes_on_with_what_they_said(scripted: Stage, is_streamed: bool) -> None:
    scripted.say(f"Let me see.\n{CALL_RED}\n{CALL_GREEN}", "Both are painted.")
    with scripted.episode() as episode, client_of(episode) as client:
        history: list[Any] = [{"role": "user", "content": "Paint both walls."}]
        settings: dict[str, Any] = {"model": "default", "tools": [PAINT], "tool_choice": "auto"}
        if is_streamed:
            with client.responses.stream(input=history, **settings) as stream:
                first = stream.get_final_response()
        else:
            first = client.responses.create(input=history, **settings)
        calls = [item for item in first.output if item.type == "function_call"]
        history += [item.model_dump(exclude={"parsed_arguments", "status"}, exclude_none=True) for item in first.output]
        history += [{"type": "function_call_output", "call_id": call.call_id, "output": "done"} for call in calls]
        last = client.responses.create(input=history, **settings)
    assert [json.loads(call.arguments) for call in calls] == [{"colour": "red"}, {"colour": "green"}]
    assert (first.output_text, last.output_text) == ("Let me see.", "Both are painted.")
    assert episode.parents == [None, 0]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "paint"}])
def test_a_model_that_must_call_a_tool_calls_it(nano: Stage, choice: Any) -> None:
    with nano.episode() as episode, client_of(episode) as client:
        response = client.responses.create(
            model="default", input="Which colour?", tools=[PAINT], tool_choice=choice, parallel_tool_calls=False
        )
    [call] = response.output
    assert call.type == "function_call"
    assert json.loads(call.arguments)["colour"] in {"red", "green"}
    assert len(episode.turns) == 1


def test_parse_returns_the_object_that_the_grammar_allowed(nano: Stage) -> None:
    with nano.episode() as episode, client_of(episode) as client:
        response = client.responses.parse(model="default", input="Which colour?", text_format=Verdict)
    assert response.output_parsed == Verdict.model_validate_json(episode.replies[0]["content"])


def test_a_refused_field_raises_the_library_s_own_error_and_leaves_no_turn(nano: Stage) -> None:
    with nano.episode() as episode, client_of(episode) as client:
        with pytest.raises(BadRequestError) as refusal:
            client.responses.create(model="default", input="Hello", top_p=0.5)
        client.responses.create(model="default", input="Hello")
    assert refusal.value.param == "top_p"
    assert len(episode.turns) == 1


def test_a_field_that_nobody_knows_is_named_to_the_client(nano: Stage) -> None:
    with nano.episode(ignored=frozenset({"flux"})) as episode, client_of(episode) as client:
        reply = client.responses.with_raw_response.create(model="default", input="Hello", extra_body={"flux": 1})
    assert reply.headers["x-ignored-fields"] == "flux"
    assert reply.parse().output_text == episode.replies[0]["content"]
