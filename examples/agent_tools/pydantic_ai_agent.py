"""An agent of Pydantic AI with a tool, its tasks and its reward: `swarm eval --agent` scores this file."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from lookups import USES, find
from lookups import reward as reward
from openai import AsyncOpenAI
from pydantic_ai import Agent, UsageLimits
from pydantic_ai.exceptions import UnexpectedModelBehavior, UsageLimitExceeded
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from swarm import Credentials, Task

LIMITS = UsageLimits(request_limit=3)


def my_agent(question: str, credentials: Credentials, tool: Callable[..., str] = find) -> str:
    async def run() -> str:
        # The library's own client belongs to one event loop, and every attempt has its own.
        async with AsyncOpenAI(base_url=credentials.base_url, api_key=credentials.api_key) as openai:
            model = OpenAIChatModel("default", provider=OpenAIProvider(openai_client=openai))
            agent = Agent(model, tools=[tool], model_settings={"max_tokens": 48})
            return (await agent.run(question, usage_limits=LIMITS)).output

    try:
        return asyncio.run(run())
    except (UnexpectedModelBehavior, UsageLimitExceeded):
        # The model called the tool wrongly again and again.
        return ""


def tasks() -> Iterable[Task]:
    return USES["find"].tasks("validation")
