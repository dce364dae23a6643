"""Agents that have the name of another model written into them: every library, whole episodes, nothing changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Literal

import anthropic
import httpx
import openai
import pytest
from anthropic import Anthropic
from integration.clients.stage import Observed, Stage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from openai import DefaultHttpxClient, OpenAI
from pydantic import BaseModel, SecretStr

pytestmark = pytest.mark.timeout(400)

LIMIT_S = 20
MESSAGES: list[Any] = [{"role": "user", "content": "Reverse: ABC"}]
PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
MULTIPLY: Any = {"type": "function", "function": {"name": "multiply", "parameters": PARAMETERS}}
CALL = '<tool_call>\n{"name": "multiply", "arguments": {"a": 6, "b": 7}}\n</tool_call>'


class Verdict(BaseModel):
    colour: Literal["red", "green"]
    is_sure: bool


@tool
def multiply(a: int, b: int) -> int:
    """The product of two numbers."""
    return a * b


def by_raw_http(episode: Observed) -> None:
    asked = {"model": "any", "messages": MESSAGES}
    headers = {"authorization": f"Bearer {episode.api_key}"}
    answer = httpx.post(f"{episode.base_url}/chat/completions", json=asked, headers=headers, timeout=LIMIT_S)
    assert answer.headers["x-ignored-fields"] == "model"
    assert answer.json()["model"] == "nano"


def by_chat(client: OpenAI) -> None:
    first = client.chat.completions.create(model="gpt-4o", messages=MESSAGES)
    more = [*MESSAGES, first.choices[0].message, *MESSAGES]
    assert client.chat.completions.create(model="any", messages=more, n=2).model == "nano"


def by_stream(client: OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(model="gpt-4o", messages=MESSAGES, stream=True)
    assert raw.headers["x-ignored-fields"] == "model"
    assert {chunk.model for chunk in raw.parse()} == {"nano"}


def by_required_tool(client: OpenAI) -> None:
    reply = client.chat.completions.create(
        model="gpt-4o",
        messages=MESSAGES,
        tools=[MULTIPLY],
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=96,
    )
    [choice] = reply.choices
    assert choice.finish_reason == "tool_calls"
    [call] = choice.message.tool_calls or []
    assert json.loads(call.function.arguments).keys() <= {"a", "b"}


def by_json_schema(client: OpenAI) -> None:
    reply = client.chat.completions.parse(model="gpt-4o", messages=MESSAGES, response_format=Verdict)
    verdict = reply.choices[0].message
    assert verdict.parsed is not None
    assert verdict.content == verdict.parsed.model_dump_json()


def by_responses(client: OpenAI) -> None:
    first = client.responses.create(model="gpt-4o", input="Reverse: ABC")
    client.responses.create(model="any", input="Reverse: XY", previous_response_id=first.id)
    with client.responses.stream(model="gpt-4o", input="Reverse: AB") as stream:
        assert stream.get_final_response().model == "nano"


def by_completions(client: OpenAI) -> None:
    assert client.completions.create(model="gpt-3.5-turbo-instruct", prompt="Reverse: AB").model == "nano"
    assert list(client.completions.create(model="any", prompt="Reverse: AB", stream=True))


@pytest.mark.parametrize(
    "work",
    [by_chat, by_stream, by_required_tool, by_json_schema, by_responses, by_completions],
    ids=lambda work: work.__name__,
)
def test_openais_library_completes_an_episode(nano: Stage, work: Callable[[OpenAI], None]) -> None:
    with nano.episode() as episode, OpenAI(base_url=episode.base_url, api_key=episode.api_key, timeout=LIMIT_S) as own:
        work(own)


def test_raw_http_completes_an_episode(nano: Stage) -> None:
    with nano.episode() as episode:
        by_raw_http(episode)


def test_an_agent_with_tools_completes_an_episode(scripted: Stage) -> None:
    scripted.say(CALL, "It is 42.")
    with (
        scripted.episode() as episode,
        OpenAI(base_url=episode.base_url, api_key=episode.api_key, timeout=LIMIT_S) as own,
    ):
        messages = list(MESSAGES)
        reply = own.chat.completions.create(model="gpt-4o", messages=messages, tools=[MULTIPLY]).choices[0].message
        [call] = reply.tool_calls or []
        messages += [reply, {"role": "tool", "tool_call_id": call.id, "content": "42"}]
        last = own.chat.completions.create(model="gpt-4o", messages=messages, tools=[MULTIPLY]).choices[0].message
    assert last.content == "It is 42."
    assert episode.parents == [None, 0]


def test_anthropics_library_completes_an_episode(nano: Stage) -> None:
    asked: dict[str, Any] = {"model": "claude-any", "messages": MESSAGES}
    with nano.episode() as episode, Anthropic(base_url=episode.root_url, api_key=episode.api_key) as own:
        raw = own.messages.with_raw_response.create(**asked, max_tokens=96)
        assert raw.headers["x-ignored-fields"] == "model"
        reply = raw.parse()
        assert (reply.model, reply.usage.input_tokens) == ("nano", own.messages.count_tokens(**asked).input_tokens)
        with own.messages.stream(**asked, max_tokens=96) as stream:
            assert stream.get_final_message().model == "nano"


def test_langchains_model_completes_an_episode(scripted: Stage) -> None:
    scripted.say(CALL, "It is 42.")
    with scripted.episode() as episode, DefaultHttpxClient() as http:
        model = ChatOpenAI(
            model="gpt-4o", base_url=episode.base_url, api_key=SecretStr(episode.api_key), http_client=http
        )
        agent = model.bind_tools([multiply])
        messages: list[Any] = list(MESSAGES)
        messages.append(agent.invoke(messages))
        messages += [multiply.invoke(call) for call in messages[-1].tool_calls]
        assert agent.invoke(messages).content == "It is 42."


def test_who_asks_about_a_model_is_told_the_truth(nano: Stage) -> None:
    with nano.episode() as episode:
        with OpenAI(base_url=episode.base_url, api_key=episode.api_key, timeout=LIMIT_S) as own:
            assert [model.id for model in own.models.list()] == ["nano"]
            assert own.models.retrieve("nano").id == "nano"
            with pytest.raises(openai.NotFoundError, match="serves 'nano'"):
                own.models.retrieve("gpt-4o")
        with (
            Anthropic(base_url=episode.root_url, api_key=episode.api_key) as other,
            pytest.raises(anthropic.NotFoundError, match="serves 'nano'"),
        ):
            other.models.retrieve("claude-any")
        by_raw_http(episode)


@pytest.mark.parametrize(("route", "body"), [("tokenize", {"prompt": "AB"}), ("detokenize", {"tokens": [40, 41]})])
def test_tokens_are_those_of_the_one_model(nano: Stage, route: str, body: dict[str, Any]) -> None:
    with nano.episode() as episode:
        url = f"{episode.root_url}/{route}"
        headers = {"authorization": f"Bearer {episode.api_key}"}
        named, own = (
            httpx.post(url, json={**body, "model": model}, headers=headers, timeout=LIMIT_S)
            for model in ("any", "nano")
        )
        assert named.json() == own.json()
        assert (named.headers["x-ignored-fields"], own.headers.get("x-ignored-fields")) == ("model", None)
        by_raw_http(episode)
