"""What only the chat and plain completions of OpenAI have: several choices, logprobs, and prompts as they are."""

from __future__ import annotations

from typing import Any

import pytest
from integration.clients.stage import Observed, Stage
from openai import OpenAI, pydantic_function_tool
from pydantic import BaseModel

from swarm.types import EpisodeType

pytestmark = pytest.mark.timeout(400)

LIMIT_S = 20


def client_of(episode: Observed) -> OpenAI:
    return OpenAI(base_url=episode.base_url, api_key=episode.api_key, timeout=LIMIT_S)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


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
