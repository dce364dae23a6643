"""What each field of a request for an OpenAI response must have led to."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from integration.clients.chat_fields import CHAT_EFFECTS, spoken
from integration.clients.fields_sent import Answered, Effects, label, sampled, served_model, streamed

Item = Mapping[str, Any]


def _text(content: str | Iterable[Item]) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def _said(items: str | Iterable[Item]) -> list[tuple[Any, ...]]:
    """Items as the messages that a chat template shows: what an assistant says and calls at once is one message."""
    if isinstance(items, str):
        return [("user", items, [])]
    said: list[tuple[Any, ...]] = []
    for item in items:
        match item.get("type", "message"):
            case "function_call":
                call = (item["name"], json.loads(item["arguments"]))
                if said and said[-1][0] == "assistant":
                    said[-1][2].append(call)
                else:
                    said.append(("assistant", "", [call]))
            case "function_call_output":
                said.append(("tool", _text(item["output"]), []))
            case _:
                said.append((item["role"], _text(item["content"]), []))
    return said


def _input(answered: Answered, items: str | list[Item]) -> bool:
    """All of the conversation, or its end where the request only goes on from an earlier response."""
    recorded, said = [spoken(message) for message in answered.turns[0].messages], _said(items)
    if answered.body.get("previous_response_id"):
        return recorded[-len(said) :] == said
    return recorded[1 if answered.body.get("instructions") else 0 :] == said


def _goes_on(answered: Answered, _: str) -> bool:
    return answered.turns[0].parent is not None


def _instructions(answered: Answered, instructions: str) -> bool:
    role, text, _ = spoken(answered.turns[0].messages[0])
    return role in {"system", "developer"} and text == instructions


def _tools(answered: Answered, tools: list[Item]) -> bool:
    recorded = [tool["function"] for tool in answered.turns[0].tools]
    names = ("name", "description", "parameters")
    return [[tool.get(name) for name in names] for tool in recorded] == [
        [tool.get(name) for name in names] for tool in tools
    ]


def _tool_choice(answered: Answered, choice: str | Item) -> bool:
    if not isinstance(choice, str):
        choice = {"type": "function", "function": {"name": choice["name"]}}
    return CHAT_EFFECTS["tool_choice"](answered, choice)


def _format(answered: Answered, text: Item) -> bool:
    wanted = text["format"]
    if wanted["type"] == "json_schema":
        wanted = {"type": "json_schema", "json_schema": wanted}
    return text.keys() == {"format"} and CHAT_EFFECTS["response_format"](answered, wanted)


def _whole(answered: Answered) -> dict[str, Any]:
    """The response, as the body or as the last event has it."""
    last = answered.answer[-1]
    return last["response"] if answered.exchange.is_streamed else last


def _stored(answered: Answered, wanted: bool) -> bool:
    return _whole(answered)["store"] is wanted


def _entries(answered: Answered) -> list[dict[str, Any]]:
    items = [item for item in _whole(answered)["output"] if item["type"] == "message"]
    return [entry for item in items for part in item["content"] for entry in part["logprobs"]]


def _include(answered: Answered, wanted: list[str]) -> bool:
    told = [entry["logprob"] for entry in _entries(answered)]
    return wanted == ["message.output_text.logprobs"] and told == answered.turns[0].logprobs


def _top_logprobs(answered: Answered, count: int) -> bool:
    return all(len(entry["top_logprobs"]) == count for entry in _entries(answered))


RESPONSE_EFFECTS: Effects = MappingProxyType(
    {
        "model": served_model,
        "input": _input,
        "instructions": _instructions,
        "tools": _tools,
        "tool_choice": _tool_choice,
        "parallel_tool_calls": CHAT_EFFECTS["parallel_tool_calls"],
        "text": _format,
        "temperature": sampled("temperature"),
        "max_output_tokens": sampled("max_tokens"),
        "stream": streamed,
        "store": _stored,
        "previous_response_id": _goes_on,
        "include": _include,
        "top_logprobs": _top_logprobs,
        "metadata": label,
    }
)
