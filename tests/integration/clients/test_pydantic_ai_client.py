"""Agents of Pydantic AI against a running server."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pytest
from integration.clients.stage import Observed, Stage
from pydantic import BaseModel

pytestmark = pytest.mark.timeout(400)

CALL_MULTIPLY = '<tool_call>\n{"name": "multiply", "arguments": {"a": 6, "b": 7}}\n</tool_call>'


class Verdict(BaseModel):
    colour: Literal["red", "green"]
    is_sure: bool


def multiply(a: int, b: int) -> int:
    """The product of two numbers."""
    return a * b


def ask(episode: Observed, prompt: str, **options: Any) -> Any:
    """The output of an agent. Without a client of its own the library keeps one open for the whole process."""
    from openai import AsyncOpenAI
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    async def main() -> Any:
        async with AsyncOpenAI(base_url=episode.base_url, api_key=episode.api_key) as client:
            model = OpenAIChatModel("default", provider=OpenAIProvider(openai_client=client))
            return (await Agent(model, **options).run(prompt)).output

    return asyncio.run(main())


def test_an_agent_with_tools_is_one_line_of_turns(scripted: Stage) -> None:
    scripted.say(f"One moment.\n{CALL_MULTIPLY}", "It is 42.")
    with scripted.episode() as episode:
        output = ask(episode, "6 * 7?", tools=[multiply], instructions="You are good with numbers.")
    assert output == "It is 42."
    assert episode.parents == [None, 0]
    assert episode.turns[1].messages[-1]["content"] == "42"


@pytest.mark.parametrize("wanted", ["ToolOutput", "NativeOutput"])
def test_a_typed_output_is_what_the_grammar_allowed(nano: Stage, wanted: str) -> None:
    import pydantic_ai

    with nano.episode() as episode:
        output = ask(episode, "Which colour?", output_type=getattr(pydantic_ai, wanted)(Verdict))
    assert isinstance(output, Verdict)
    assert len(episode.turns) == 1
