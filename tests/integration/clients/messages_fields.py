"""What each field of a request for an Anthropic message must have led to."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import groupby
from types import MappingProxyType
from typing import Any

from integration.clients.chat_fields import COMPACT, spoken
from integration.clients.fields_sent import Answered, Effects, label, sampled, served_model, streamed

Block = Mapping[str, Any]


def _text(content: str | Iterable[Block]) -> str:
    return content if isinstance(content, str) else "".join(block.get("text", "") for block in content)


def _said(message: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """A message as those that a chat template shows."""
    role, content = message["role"], message["content"]
    if isinstance(content, str):
        return [(role, content, [])]
    if role == "assistant":
        calls = [(block["name"], block["input"]) for block in content if block["type"] == "tool_use"]
        return [(role, _text(content), calls)]
    said: list[tuple[Any, ...]] = []
    for is_result, blocks in groupby(content, key=lambda block: block["type"] == "tool_result"):
        if is_result:
            said += [("tool", _text(block.get("content", "")), []) for block in blocks]
        else:
            said.append((role, _text(blocks), []))
    return said


def _conversation(answered: Answered, messages: Iterable[Mapping[str, Any]]) -> bool:
    recorded = [spoken(message) for message in answered.turns[0].messages if message["role"] != "system"]
    return recorded == [each for message in messages for each in _said(message)]


def _system(answered: Answered, system: str | list[Block]) -> bool:
    return spoken(answered.turns[0].messages[0]) == ("system", _text(system), [])


def _tools(answered: Answered, tools: list[Block]) -> bool:
    recorded = [tool["function"] for tool in answered.turns[0].tools]
    return [(tool["name"], tool.get("description"), tool["parameters"]) for tool in recorded] == [
        (tool["name"], tool.get("description"), tool["input_schema"]) for tool in tools
    ]


def _tool_choice(answered: Answered, choice: Block) -> bool:
    called = [call["function"]["name"] for call in answered.turns[0].reply.get("tool_calls") or []]
    if choice.get("disable_parallel_tool_use") and len(called) > 1:
        return False
    match choice["type"]:
        case "auto":
            return True
        case "none":
            return not called
        case "any":
            return answered.is_constrained and bool(called)
        case _:
            return answered.is_constrained and set(called) == {choice["name"]}


def _format(answered: Answered, wanted: Block) -> bool:
    grammar = answered.params["grammar"]
    return grammar["kind"] == "json_schema" and json.loads(grammar["text"]) == {**wanted["schema"], **COMPACT}


def _output_config(answered: Answered, wanted: Block) -> bool:
    return wanted.keys() == {"format"} and _format(answered, wanted["format"])


MESSAGE_EFFECTS: Effects = MappingProxyType(
    {
        "model": served_model,
        "messages": _conversation,
        "system": _system,
        "tools": _tools,
        "tool_choice": _tool_choice,
        "output_config": _output_config,
        "output_format": _format,
        "max_tokens": sampled("max_tokens"),
        "temperature": sampled("temperature"),
        "stop_sequences": sampled("stop"),
        "stream": streamed,
        "metadata": label,
    }
)
