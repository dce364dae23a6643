"""Agents of Pydantic AI against a running server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Literal, TypeVar

import pytest
from integration.clients.stage import Observed, Stage
from openai import AsyncOpenAI
from pydantic import BaseModel
from pydantic_ai import Agent, AgentRunResult, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

pytestmark = pytest.mark.timeout(400)

Result = TypeVar("Result")

CALL_MULTIPLY = '<tool_call>\n{"name": "multiply", "arguments": {"a": 6, "b": 7}}\n</tool_call>'


class Verdict(BaseModel):
    colour: Literal["red", "green"]
    is_sure: bool


def multiply(a: int, b: int) -> int:
    """The product of two numbers."""
    return a * b


def run(episode: Observed, use: Callable[[OpenAIChatModel], Awaitable[Result]]) -> Result:
    """What `use` makes of a model. Without a client of its own the library keeps one open for the whole process."""

    async def main() -> Result:
        async with AsyncOpenAI(base_url=episode.base_url, api_key=episode.api_key) as client:
            return await use(OpenAIChatModel("default", provider=OpenAIProvider(openai_client=client)))

    return asyncio.run(main())


def test_an_agent_goes_on_from_its_history(nano: Stage) -> None:
    async def converse(model: OpenAIChatModel) -> list[AgentRunResult[str]]:
        agent = Agent(model, model_settings={"temperature": 0.0, "seed": 4, "max_tokens": 64})
        first = await agent.run("Reverse: ABC")
        return [first, await agent.run("Reverse: XY", message_history=first.all_messages())]

    with nano.episode() as episode:
        results = run(episode, converse)
    assert [result.output for result in results] == [reply["content"] for reply in episode.replies]
    assert [result.usage.output_tokens for result in results] == [len(turn.output_ids) for turn in episode.turns]
    assert episode.parents == [None, 0]


def test_an_agent_with_tools_is_one_line_of_turns(scripted: Stage) -> None:
    async def calculate(model: OpenAIChatModel) -> str:
        agent = Agent(model, tools=[multiply], instructions="You are good with numbers.")
        return (await agent.run("6 * 7?")).output

    scripted.say(f"One moment.\n{CALL_MULTIPLY}", "It is 42.")
    with scripted.episode() as episode:
        output = run(episode, calculate)
    assert output == "It is 42."
    assert episode.parents == [None, 0]
    assert episode.turns[1].messages[-1]["content"] == "42"


def test_a_streamed_run_is_what_was_sampled(nano: Stage) -> None:
    async def read(model: OpenAIChatModel) -> str:
        async with Agent(model).run_stream("Reverse: ABCD", model_settings={"temperature": 0.0}) as result:
            return "".join([text async for text in result.stream_text(delta=True)])

    with nano.episode() as episode:
        text = run(episode, read)
    assert text == episode.replies[0]["content"]


@pytest.mark.parametrize("wanted", [ToolOutput(Verdict), NativeOutput(Verdict)], ids=["tool", "schema"])
def test_a_typed_output_is_what_the_grammar_allowed(nano: Stage, wanted: Any) -> None:
    async def decide(model: OpenAIChatModel) -> object:
        return (await Agent(model, output_type=wanted).run("Which colour?")).output

    with nano.episode() as episode:
        output = run(episode, decide)
    assert isinstance(output, Verdict)
    assert len(episode.turns) == 1
