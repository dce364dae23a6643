"""An agent of LangChain with a tool, its tasks and its reward: `swarm eval --agent` scores this file."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI
from langgraph.errors import GraphRecursionError
from lookups import USES, find
from lookups import reward as reward
from pydantic import SecretStr

from swarm import Credentials, Task

MOST_STEPS = 7
"""Three replies of the model, with the tool in between."""


def my_agent(question: str, credentials: Credentials, tool: Callable[..., str] = find) -> str:
    model = ChatOpenAI(
        base_url=credentials.base_url,
        api_key=SecretStr(credentials.api_key),
        model="default",
        max_completion_tokens=48,
    )
    agent = create_agent(model, [tool])
    try:
        final = agent.invoke({"messages": [HumanMessage(question)]}, {"recursion_limit": MOST_STEPS})
    except GraphRecursionError:
        return ""
    return final["messages"][-1].text


def tasks() -> Iterable[Task]:
    return USES["find"].tasks("validation")
