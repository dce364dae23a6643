"""What each field of a chat completion's request must have led to."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from integration.clients.fields_sent import Answered, Effects, label, sampled, served_model, streamed

Message = Mapping[str, Any]

COMPACT: Mapping[str, Any] = MappingProxyType(
    {"x-guidance": {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}}
)
"""What a grammar says of the JSON that it allows, beside the schema."""


def _text(content: object) -> str:
    if isinstance(content, list):
        return "".join(part["text"] for part in content)
    return str(content or "")


def spoken(message: Message) -> tuple[Any, ...]:
    """All of a message that a chat template shows."""
    calls = [
        (call["function"]["name"], json.loads(call["function"]["arguments"]))
        for call in message.get("tool_calls") or []
    ]
    return message["role"], _text(message.get("content")), calls


def _conversation(answered: Answered, messages: Iterable[Message]) -> bool:
    return list(map(spoken, messages)) == list(map(spoken, answered.turns[0].messages))


def _tools(answered: Answered, tools: list[Any]) -> bool:
    return answered.turns[0].tools == tools


def _tool_choice(answered: Answered, choice: object) -> bool:
    called = [call["function"]["name"] for turn in answered.turns for call in turn.reply.get("tool_calls") or []]
    match choice:
        case "none":
            return not called
        case "auto":
            return True
        case "required":
            return answered.is_constrained and bool(called)
        case {"type": "function", "function": {"name": name}}:
            return answered.is_constrained and set(called) == {name}
        case _:
            return False


def _parallel(answered: Answered, allowed: bool) -> bool:
    return allowed or all(len(turn.reply.get("tool_calls") or []) <= 1 for turn in answered.turns)


def _response_format(answered: Answered, wanted: Mapping[str, Any]) -> bool:
    grammar = answered.params["grammar"]
    match wanted["type"]:
        case "text":
            return grammar is None
        case "json_schema":
            schema = wanted["json_schema"]["schema"]
            return grammar["kind"] == "json_schema" and json.loads(grammar["text"]) == {**schema, **COMPACT}
        case kind:
            return grammar["kind"] == kind


def _stream_options(answered: Answered, options: Mapping[str, Any]) -> bool:
    (*_, last) = answered.answer
    sampled_tokens = sum(len(turn.output_ids) for turn in answered.turns)
    return not options.get("include_usage") or last["usage"]["completion_tokens"] == sampled_tokens


def _entries(answered: Answered) -> dict[int, list[dict[str, Any]]]:
    """By choice, what is said of each of its tokens."""
    found: dict[int, list[dict[str, Any]]] = {}
    for part in answered.answer:
        for choice in part.get("choices", ()):
            found.setdefault(choice["index"], []).extend((choice.get("logprobs") or {}).get("content") or ())
    return found


def _logprobs(answered: Answered, wanted: bool) -> bool:
    told = {choice: [entry["logprob"] for entry in entries] for choice, entries in _entries(answered).items()}
    return told == {turn.choice: turn.logprobs if wanted else [] for turn in answered.turns}


def _top_logprobs(answered: Answered, count: int) -> bool:
    return all(len(entry["top_logprobs"]) == count for entries in _entries(answered).values() for entry in entries)


def _token_ids(answered: Answered, wanted: bool) -> bool:
    told: dict[int, list[int]] = {}
    for part in answered.answer:
        for choice in part.get("choices", ()):
            told.setdefault(choice["index"], []).extend(choice.get("token_ids") or ())
    return told == {turn.choice: turn.output_ids if wanted else [] for turn in answered.turns}


def _choices(answered: Answered, count: int) -> bool:
    return sorted(turn.choice for turn in answered.turns) == list(range(count))


def _stop(answered: Answered, stop: str | list[str]) -> bool:
    return answered.params["stop"] == ([stop] if isinstance(stop, str) else stop)


def _biases(answered: Answered, biases: Mapping[str, float]) -> bool:
    return answered.params["logit_bias"] == [[int(token), bias] for token, bias in sorted(biases.items())]


CHAT_EFFECTS: Effects = MappingProxyType(
    {
        "model": served_model,
        "messages": _conversation,
        "tools": _tools,
        "tool_choice": _tool_choice,
        "parallel_tool_calls": _parallel,
        "response_format": _response_format,
        "temperature": sampled("temperature"),
        "top_p": sampled("top_p"),
        "presence_penalty": sampled("presence_penalty"),
        "frequency_penalty": sampled("frequency_penalty"),
        "logit_bias": _biases,
        "max_tokens": sampled("max_tokens"),
        "max_completion_tokens": sampled("max_tokens"),
        "seed": sampled("seed"),
        "stop": _stop,
        "n": _choices,
        "stream": streamed,
        "stream_options": _stream_options,
        "logprobs": _logprobs,
        "top_logprobs": _top_logprobs,
        "return_token_ids": _token_ids,
        "user": label,
        "store": label,
        "metadata": label,
    }
)
