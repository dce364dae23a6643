"""LangChain's chat model and agents against a running server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import pytest
from integration.clients.stage import Observed, Stage
from pydantic import BaseModel, ConfigDict, SecretStr

if TYPE_CHECKING:
    from langchain_openai import ChatOpenAI

pytestmark = pytest.mark.timeout(400)

Result = TypeVar("Result")

LIMIT_S = 20
CALL_MULTIPLY = '<tool_call>\n{"name": "multiply", "arguments": {"a": 6, "b": 7}}\n</tool_call>'


class Verdict(BaseModel):
    """What was found."""

    model_config = ConfigDict(extra="forbid")

    colour: Literal["red", "green"]
    is_sure: bool


@contextmanager
def model_of(episode: Observed, **settings: Any) -> Iterator[ChatOpenAI]:
    from langchain_openai import ChatOpenAI
    from openai import DefaultHttpxClient

    # Its own clients are shared by all models of a process and never closed.
    with DefaultHttpxClient() as http:
        yield ChatOpenAI(
            model="default",
            base_url=episode.base_url,
            api_key=SecretStr(episode.api_key),
            timeout=LIMIT_S,
            http_client=http,
            **settings,
        )


@pytest.mark.parametrize("by_responses", [False, True], ids=["chat", "responses"])
def test_an_agent_with_tools_is_one_line_of_turns(scripted: Stage, by_responses: bool) -> None:
    from langchain.agents import create_agent
    from langchain_core.messages import HumanMessage
    from langchain_core.tools import tool

    @tool
    def multiply(a: int, b: int) -> int:
        """The product of two numbers."""
        return a * b

    scripted.say(CALL_MULTIPLY, "It is 42.")
    with scripted.episode() as episode, model_of(episode, use_responses_api=by_responses) as model:
        agent = create_agent(model, [multiply], system_prompt="You are good with numbers.")
        final = agent.invoke({"messages": [HumanMessage("6 * 7?")]})
    assert [message.type for message in final["messages"]] == ["human", "ai", "tool", "ai"]
    assert [message.text for message in final["messages"][2:]] == ["42", "It is 42."]
    assert episode.parents == [None, 0]
    assert episode.turns[1].messages[-1]["content"] == "42"


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output_is_what_the_grammar_allowed(nano: Stage, method: Any) -> None:
    with nano.episode() as episode, model_of(episode) as model:
        found = model.with_structured_output(Verdict, method=method, include_raw=True).invoke("Which colour?")
    assert isinstance(found, dict)
    assert isinstance(found["parsed"], Verdict)
    assert episode.turns[0].params["grammar"] is not None
