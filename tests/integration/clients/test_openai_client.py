"""OpenAI's own Python library against a running server."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Literal

import pytest
from integration.clients.stage import Observed, Stage
from openai import AsyncOpenAI, BadRequestError, OpenAI, pydantic_function_tool
from pydantic import BaseModel

from swarm.types import EpisodeType

pytestmark = pytest.mark.timeout(400)

LIMIT_S = 20
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
CALL_PARIS = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
CALL_ROME = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'


def client_of(episode: Observed) -> OpenAI:
    return OpenAI(base_url=episode.base_url, api_key=episode.api_key, timeout=LIMIT_S)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def test_a_conversation_is_recorded_as_one_line_of_tokens(nano: Stage) -> None:
    with nano.episode() as episode, client_of(episode) as client:
        messages: list[Any] = [user("Reverse: ABC")]
        first = client.chat.completions.create(model="default", messages=messages, temperature=0)
        messages += [first.choices[0].message, user("Reverse: XY")]
        second = client.chat.completions.create(model=episode.credentials.model, messages=messages, seed=3)
    assert episode.parents == [None, 0]
    said = [reply["content"] for reply in episode.replies]
    assert said == [first.choices[0].message.content, second.choices[0].message.content]
    assert all(said)
    assert first.usage is not None
    assert first.usage.completion_tokens == len(episode.turns[0].output_ids)
    assert all(agent.startswith("OpenAI/Python") for agent in episode.user_agents)


def test_what_is_streamed_is_what_was_sampled(nano: Stage) -> None:
    with nano.episode() as episode, client_of(episode) as client:
        stream = client.chat.completions.create(
            model="default",
            messages=[user("Reverse: ABCD")],
            stream=True,
            stream_options={"include_usage": True},
            logprobs=True,
            extra_body={"return_token_ids": True},
        )
        chunks = list(stream)
    [turn] = episode.turns
    deltas = [choice for chunk in chunks for choice in chunk.choices]
    assert "".join(choice.delta.content or "" for choice in deltas) == turn.reply["content"]
    entries = [entry for choice in deltas if choice.logprobs for entry in choice.logprobs.content or []]
    assert [entry.token for entry in entries] == turn.output_tokens
    assert [token for choice in deltas for token in (choice.model_extra or {})["token_ids"]] == turn.output_ids


def test_the_streaming_helper_puts_the_same_reply_together(nano: Stage) -> None:
    with (
        nano.episode() as episode,
        client_of(episode) as client,
        client.chat.completions.stream(model="default", messages=[user("Reverse: AB")]) as stream,
    ):
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert final.choices[0].message.content == episode.replies[0]["content"]


def test_concurrent_calls_of_an_async_client_are_turns_of_their_own(nano: Stage) -> None:
    async def ask_all(episode: Observed) -> list[str | None]:
        async with AsyncOpenAI(base_url=episode.base_url, api_key=episode.api_key, timeout=LIMIT_S) as client:
            calls = [
                client.chat.completions.create(model="default", messages=[user(f"Reverse: {word}")])
                for word in ("AB", "CD", "EF", "GH")
            ]
            return [reply.choices[0].message.content for reply in await asyncio.gather(*calls)]

    with nano.episode() as episode:
        replies = asyncio.run(ask_all(episode))
    recorded = {turn.messages[0]["content"]: turn.reply["content"] for turn in episode.turns}
    assert [recorded[f"Reverse: {word}"] for word in ("AB", "CD", "EF", "GH")] == replies


def test_an_async_stream_is_read_to_its_end(nano: Stage) -> None:
    async def read(episode: Observed) -> str:
        async with AsyncOpenAI(base_url=episode.base_url, api_key=episode.api_key, timeout=LIMIT_S) as client:
            stream = await client.chat.completions.create(model="default", messages=[user("Reverse: AB")], stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    with nano.episode() as episode:
        text = asyncio.run(read(episode))
    assert text == episode.replies[0]["content"]


def test_several_choices_are_several_turns(nano: Stage) -> None:
    with nano.episode() as episode, client_of(episode) as client:
        reply = client.chat.completions.create(
            model="default", messages=[user("Reverse: ABC")], n=3, seed=5, logprobs=True, top_logprobs=2
        )
    assert [choice.message.content for choice in reply.choices] == [each["content"] for each in episode.replies]
    assert {turn.call_id for turn in episode.turns} == {reply.id.removeprefix("chatcmpl-")}


def test_an_eval_episode_takes_every_sampling_parameter(nano: Stage) -> None:
    with nano.episode(EpisodeType.EVAL) as episode, client_of(episode) as client:
        reply = client.chat.completions.create(
            model="default",
            messages=[user("Reverse: ABC")],
            temperature=0.7,
            top_p=0.9,
            presence_penalty=0.5,
            frequency_penalty=-0.5,
            logit_bias={"40": 2, "41": -100},
            stop=["Z"],
            seed=7,
            max_completion_tokens=30,
            user="somebody",
            metadata={"purpose": "test"},
            store=False,
        )
    assert reply.choices[0].message.content == episode.replies[0]["content"]
    assert 41 not in episode.turns[0].output_ids


def test_parse_returns_the_object_that_the_grammar_allowed(nano: Stage) -> None:
    class Verdict(BaseModel):
        colour: Literal["red", "green"]
        is_sure: bool

    with nano.episode() as episode, client_of(episode) as client:
        reply = client.chat.completions.parse(
            model="default", messages=[user("Which colour?")], response_format=Verdict, temperature=1
        )
    verdict = reply.choices[0].message.parsed
    assert verdict is not None
    assert Verdict.model_validate_json(episode.replies[0]["content"]) == verdict


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_model_that_must_call_a_tool_calls_it(nano: Stage, choice: Any) -> None:
    with nano.episode() as episode, client_of(episode) as client:
        reply = client.chat.completions.create(
            model="default",
            messages=[user("What is the weather?")],
            tools=[WEATHER],
            tool_choice=choice,
            parallel_tool_calls=False,
        )
    [call] = reply.choices[0].message.tool_calls or []
    assert json.loads(call.function.arguments)["city"] in {"Paris", "Rome"}
    assert episode.replies[0]["tool_calls"] == [call.model_dump()]


@pytest.mark.parametrize("is_streamed", [False, True])
def test_an_agent_calls_tools_and_goes_on_with_what_they_said(scripted: Stage, is_streamed: bool) -> None:
    scripted.say(f"Let me look.\n{CALL_PARIS}\n{CALL_ROME}", "Sunny in both.")
    with scripted.episode() as episode, client_of(episode) as client:
        messages: list[Any] = [user("Weather in Paris and Rome?")]
        asked: dict[str, Any] = {"model": "default", "tools": [WEATHER], "tool_choice": "auto"}
        if is_streamed:
            with client.chat.completions.stream(messages=messages, **asked) as stream:
                first = stream.get_final_completion().choices[0]
        else:
            first = client.chat.completions.create(messages=messages, **asked).choices[0]
        calls = first.message.tool_calls or []
        messages.append(first.message.model_dump(exclude_none=True, exclude={"parsed"}))
        messages += [{"role": "tool", "tool_call_id": call.id, "content": "sunny"} for call in calls]
        last = client.chat.completions.create(messages=messages, **asked).choices[0]
    assert (first.finish_reason, last.finish_reason) == ("tool_calls", "stop")
    assert first.message.content == "Let me look."
    assert [json.loads(call.function.arguments) for call in calls] == [{"city": "Paris"}, {"city": "Rome"}]
    assert last.message.content == "Sunny in both."
    assert episode.parents == [None, 0]


def test_tools_made_of_models_are_parsed_back_into_them(scripted: Stage) -> None:
    class Weather(BaseModel):
        city: str

    scripted.say('<tool_call>\n{"name": "Weather", "arguments": {"city": "Zürich"}}\n</tool_call>')
    with scripted.episode() as episode, client_of(episode) as client:
        reply = client.chat.completions.parse(
            model="default", messages=[user("Weather?")], tools=[pydantic_function_tool(Weather)]
        )
    [call] = reply.choices[0].message.tool_calls or []
    assert call.function.parsed_arguments == Weather(city="Zürich")
    assert episode.turns[0].tools[0]["function"]["strict"] is True


def test_the_environment_of_an_episode_is_all_that_a_client_needs(nano: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    with nano.episode() as episode:
        for name, value in episode.credentials.env().items():
            monkeypatch.setenv(name, value)
        with OpenAI() as client:
            reply = client.chat.completions.create(model="default", messages=[user("Reverse: AB")])
    assert reply.choices[0].message.content == episode.replies[0]["content"]


def test_a_field_that_nobody_knows_is_named_to_the_client(nano: Stage) -> None:
    with nano.episode(ignored=frozenset({"flux"})) as episode, client_of(episode) as client:
        reply = client.chat.completions.with_raw_response.create(
            model="default", messages=[user("Reverse: AB")], extra_body={"flux": 1}
        )
    assert reply.headers["x-ignored-fields"] == "flux"
    assert reply.parse().choices[0].message.content == episode.replies[0]["content"]


def test_a_refused_field_raises_the_library_s_own_error_and_leaves_no_turn(nano: Stage) -> None:
    with nano.episode() as episode, client_of(episode) as client:
        with pytest.raises(BadRequestError) as refusal:
            client.chat.completions.create(model="default", messages=[user("Hello")], top_p=0.5)
        client.chat.completions.create(model="default", messages=[user("Hello")])
    assert refusal.value.param == "top_p"
    assert len(episode.turns) == 1


def test_the_models_of_an_episode_are_listed(nano: Stage) -> None:
    with nano.episode() as episode, client_of(episode) as client:
        assert [model.id for model in client.models.list()] == [client.models.retrieve("nano").id]
        client.chat.completions.create(model="nano", messages=[user("Hello")])


@pytest.mark.parametrize("is_spelled", [True, False], ids=["text", "ids"])
def test_a_plain_completion_continues_its_prompt(nano: Stage, is_spelled: bool) -> None:
    prompt: Any = "<|im_start|>user\nReverse: AB<|im_end|>\n<|im_start|>assistant\n" if is_spelled else [1, 5, 6, 7]
    with nano.episode() as episode, client_of(episode) as client:
        reply = client.completions.create(model="default", prompt=prompt, max_tokens=20, logprobs=1)
    [turn] = episode.turns
    assert reply.choices[0].text == turn.reply["content"]
    logprobs = reply.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens == turn.output_tokens


def test_a_streamed_plain_completion_is_what_was_sampled(nano: Stage) -> None:
    with nano.episode() as episode, client_of(episode) as client:
        chunks = list(client.completions.create(model="default", prompt="ABC", max_tokens=20, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == episode.replies[0]["content"]


def test_an_episode_that_is_named_by_its_path_needs_no_key(nano: Stage) -> None:
    with nano.episode() as episode, OpenAI(base_url=episode.credentials.path_base_url, api_key="none") as client:
        client.chat.completions.create(model="default", messages=[user("Hello")], timeout=LIMIT_S)
    assert len(episode.turns) == 1
