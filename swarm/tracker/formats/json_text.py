"""Calls written as JSON: where a value ends in a text that still grows, and the call that an object describes."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from json import JSONDecodeError, JSONDecoder
from typing import Any

from swarm.tracker.formats.base import ToolCall

_SPACE = " \t\n\r"
_OUTSIDE = re.compile(r'["{}\[\]]')
_INSIDE = re.compile(r'["\\]')


class JsonExtent:
    """A search for the end of an object or array by its brackets, which reads each character once."""

    def __init__(self, begin: int = 0) -> None:
        """Build a search whose opening bracket is character `begin` of the text."""
        self._position: int = begin
        self._depth = 0
        self._in_string = False

    def find_end(self, text: str) -> int | None:
        """Return the index after the closing bracket, or None while it is missing.

        `text` must continue the text of the previous call.
        """
        while match := (_INSIDE if self._in_string else _OUTSIDE).search(text, self._position):
            found = match.group()
            if found == "\\":
                if match.end() == len(text):
                    self._position = match.start()
                    return None
                self._position = match.end() + 1
                continue
            self._position = match.end()
            if found == '"':
                self._in_string = not self._in_string
                continue
            self._depth += 1 if found in "{[" else -1
            if self._depth == 0:
                return match.end()
        self._position = len(text)
        return None


def parse_call(body: str, keys: Collection[str] = ("arguments",), default: str | None = "{}") -> ToolCall | None:
    """Return the call that the JSON object `body` describes, or None.

    Its arguments are under one of `keys`. Without any of them the arguments are `default`; a default of None means that
    it is not a call.
    """
    try:
        return _call(top_level(body.strip(_SPACE)), keys, default)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def parse_arguments(name: str, arguments: str) -> ToolCall | None:
    """Return the call of a name that is written apart from its arguments, or None."""
    return parse_call(f'{{"name": {json.dumps(name)}, "arguments": {arguments}}}')


def parse_calls(body: str) -> list[ToolCall]:
    """Return the calls of a JSON array of objects; none if one of them is not a call."""
    try:
        items = list(_parts(body)) if isinstance(_DECODER.decode(body), list) else []
    except (ValueError, RecursionError):
        return []
    calls = [parse_call(item) for _, item in items]
    return [call for call in calls if call is not None] if None not in calls else []


def ends_in_string(text: str) -> bool:
    """Return whether this is the beginning of a JSON value, cut off within a string."""
    try:
        _DECODER.decode(text.strip(_SPACE))
    except JSONDecodeError as error:
        return error.msg.startswith("Unterminated string")
    except (ValueError, RecursionError):
        return False
    return False


def top_level(text: str) -> dict[str, str]:
    """Return the fields of a JSON object, each with the text of its value. Raise ValueError for any other text."""
    if not isinstance(_DECODER.decode(text), dict):
        raise ValueError("not an object")
    return dict(_parts(text))


def _call(fields: dict[str, str], keys: Collection[str], default: str | None) -> ToolCall | None:
    name = json.loads(fields["name"])
    arguments = next((fields[key] for key in keys if key in fields), default)
    if arguments is None:
        return None
    value = _DECODER.decode(arguments)
    if isinstance(value, str):
        arguments, value = value, _DECODER.decode(value)
    # Escapes can spell lone surrogates, which no response can be encoded with.
    (name + arguments).encode()
    return ToolCall(name, arguments) if name and isinstance(value, dict) else None


def _parts(text: str) -> Iterator[tuple[str, str]]:
    """Yield the texts of the values of an object with their keys, or of an array with empty keys."""
    is_object, position = text[0] == "{", _skip(text, 1)
    while text[position] not in "}]":
        key = ""
        if is_object:
            key, position = _DECODER.raw_decode(text, position)
            position = _skip(text, _skip(text, position) + 1)
        _, end = _DECODER.raw_decode(text, position)
        yield key, text[position:end]
        position = _skip(text, end)
        if text[position] == ",":
            position = _skip(text, position + 1)


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


_DECODER = JSONDecoder(parse_constant=_refuse)


def _skip(text: str, position: int) -> int:
    while text[position] in _SPACE:
        position += 1
    return position
