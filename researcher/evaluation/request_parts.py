"""The parts of a request by which an agent can tell its model something, or limit what it replies."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from swarm.schemas import TurnView
from swarm.types import Message

Limit = tuple[str, str]
"""The name of a part that limits the reply, and its value as JSON."""


def _param(name: str) -> Callable[[TurnView], Any]:
    return lambda turn: turn.params.get(name)


REQUEST_PARTS: Mapping[str, Callable[[TurnView], Any]] = MappingProxyType(
    {
        "messages": lambda turn: turn.messages,
        "tools": lambda turn: turn.tools,
        "template options": lambda turn: turn.template_options,
        "grammar": _param("grammar"),
        "stop words": _param("stop"),
        "stop tokens": _param("stop_token_ids"),
        "token biases": _param("logit_bias"),
        "most tokens": _param("max_tokens"),
        "least tokens": _param("min_tokens"),
    }
)
"""All parts of a request by which code can tell the model something, with how they are read.

A grammar is what the server made of a response format, a choice, a pattern, a schema or a forced call of tools.
"""
LIMITS = frozenset({"grammar", "stop words", "stop tokens", "token biases", "most tokens", "least tokens"})
"""The parts that limit what the model can reply."""


def strings_of(turn: TurnView) -> Iterator[str]:
    """Yield all texts of a request, whatever part they stand in."""
    return (text for read in REQUEST_PARTS.values() for text in strings_in(read(turn)))


def texts_of(turn: TurnView) -> str:
    """Return all texts of a request as one."""
    return "\n".join(strings_of(turn))


def strings_in(value: Any) -> Iterator[str]:
    """Yield the texts in a JSON value, the keys of objects among them. JSON inside a text is read as well."""
    match value:
        case str():
            yield value
            if value.lstrip().startswith(("{", "[")):
                try:
                    yield from strings_in(json.loads(value))
                except (ValueError, RecursionError):
                    return
        case Mapping():
            for name, each in value.items():
                yield str(name)
                yield from strings_in(each)
        case list() | tuple():
            for each in value:
                yield from strings_in(each)
        case _:
            return


def limits_of(turn: TurnView) -> dict[str, Any]:
    """Return the limits of a request by their names, without those that are not set."""
    found = {name: read(turn) for name, read in REQUEST_PARTS.items() if name in LIMITS}
    return {name: value for name, value in found.items() if value}


def key_of(name: str, value: Any) -> Limit:
    """Return a limit in a form in which equal ones are equal."""
    return name, json.dumps(value, sort_keys=True, default=str)


def said_by(message: Message) -> str:
    """Return what a message says: its text, and the values in the arguments of its tool calls."""
    content: Any = message.get("content")
    calls: Any = message.get("tool_calls") or ()
    return "\n".join([*strings_in(content), *(_values(call["function"]["arguments"]) for call in calls)])


def _values(arguments: str) -> str:
    """Return the values of a JSON object in a text, without the names of the fields."""
    try:
        read = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return "\n".join(map(str, _leaves(read)))


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _leaves(each)
    else:
        yield value
