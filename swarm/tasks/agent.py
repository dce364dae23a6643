"""The reference agent, which attempts any family's task over the plain OpenAI chat protocol."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, cast

import httpx

from swarm.errors import ServerUnreachable, error_class
from swarm.tasks.base import TaskFamily
from swarm.types import KEEP_ALIVE_HEADER, Message, Task, WorkflowOutput

KEEP_ALIVE_S = 15.0
"""The interval of the signs of life that a server is asked for while it works on a call."""
SILENT_INTERVALS = 4
"""A server that gives no sign of life for so many intervals is gone. One that is only slow gives them."""
CONNECT_LIMIT_S = 30.0

Conversation = Generator[dict[str, Any], Message, WorkflowOutput]


def converse(
    family: TaskFamily, task: Task, *, model: str = "default", temperature: float | None = None
) -> Conversation:
    """Yield request bodies for chat/completions, receive assistant messages, and return the output with its reward.

    A `temperature` of None leaves the choice to the server.
    """
    exchange = family.open(task)
    messages = list(exchange.messages)
    options: dict[str, Any] = {"model": model, "max_tokens": family.max_tokens}
    if temperature is not None:
        options["temperature"] = temperature
    if family.tools:
        options["tools"] = list(family.tools)
    following: tuple[Message, ...] | None = ()
    while following is not None:
        messages.extend(following)
        reply = yield {**options, "messages": list(messages)}
        messages.append(_as_history(reply))
        following = exchange.reply(reply)
    return WorkflowOutput(
        reward=exchange.reward,
        is_success=exchange.reward > 0,
        metadata={"task_id": task.task_id, "turns": exchange.turns},
    )


def run_agent(
    family: TaskFamily,
    task: Task,
    *,
    base_url: str,
    api_key: str,
    model: str = "default",
    http: httpx.Client | None = None,
    temperature: float | None = None,
) -> WorkflowOutput:
    """Attempt `task` with the model at `base_url` and return the output with its reward.

    Pass a shared `http` client, as `open_http` returns it, to keep connections alive. Raises ServerUnreachable if no
    answer comes, and otherwise the error that the server names. An error is never a reward.
    """
    if http is None:
        # Loading certificates takes longer than most attempts, and plain HTTP needs none.
        with open_http(verify=base_url.startswith("https:")) as own:
            return run_agent(
                family, task, base_url=base_url, api_key=api_key, model=model, http=own, temperature=temperature
            )
    url, headers = f"{base_url.rstrip('/')}/chat/completions", {"Authorization": f"Bearer {api_key}"}
    conversation = converse(family, task, model=model, temperature=temperature)
    try:
        body = next(conversation)
        while True:
            response = http.post(url, json=body, headers=headers)
            body = conversation.send(assistant_message(response))
    except StopIteration as finished:
        return finished.value
    except httpx.TransportError as error:
        raise no_answer(url, error) from error


def _as_history(reply: Message) -> Message:
    """Return the reply as later requests repeat it: unchanged, but without the fields that only replies have."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.get("content")}
    if reply.get("tool_calls"):
        message["tool_calls"] = reply["tool_calls"]
    return message


def open_http(
    transport: httpx.BaseTransport | None = None, *, verify: bool = True, keep_alive_s: float = KEEP_ALIVE_S
) -> httpx.Client:
    """Return an HTTP client for model calls, which may take as long as the server works on them.

    The server is asked for a sign of life every `keep_alive_s` seconds. So a slow server is waited for, and a server
    that is gone is noticed.
    """
    timeout = httpx.Timeout(SILENT_INTERVALS * keep_alive_s, connect=CONNECT_LIMIT_S)
    headers = {KEEP_ALIVE_HEADER: f"{keep_alive_s:g}"}
    return httpx.Client(transport=transport, verify=verify, timeout=timeout, headers=headers)


def no_answer(url: str, error: httpx.TransportError) -> ServerUnreachable:
    return ServerUnreachable(f"no answer from {url}: {type(error).__name__}: {error}; is the server running?")


def assistant_message(response: httpx.Response) -> Message:
    """Return the message of a chat completion, or raise the error that the server names.

    A server that has given a sign of life can only name an error in the body: its status was sent before.
    """
    try:
        body: Any = response.json()
        if response.is_success and "error" not in body:
            return cast(Message, body["choices"][0]["message"])
        error = body["error"]
        code, message = str(error["code"]), str(error["message"])
    except (ValueError, KeyError, TypeError, IndexError):
        code, message = "", f"HTTP {response.status_code} without a chat completion: {response.text[:200]!r}"
    raise error_class(code)(message)
