"""A digest of any Python value by its content: equal content gives the same digest in every process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from hashlib import sha256
from typing import Any, cast

DIGITS = 24
"""Hexadecimal digits of a digest: 96 bits, so that two of a billion values are unlikely to share one."""


_SCALARS: tuple[tuple[type, Callable[[Any], Any]], ...] = ((str, str.__str__), (int, int), (float, float))


def digest_of(value: object) -> str:
    """Return the digest of any value.

    A value without a JSON form counts by its type and its `repr`. An object without a `repr` of its own counts by its
    attributes, never by its address in memory.
    """
    return sha256(json.dumps(_plain(value, ()), ensure_ascii=True).encode()).hexdigest()[:DIGITS]


def _plain(value: Any, inside: tuple[int, ...]) -> Any:
    """Return the value as lists, strings and numbers. `inside` has the ids of the containers around it."""
    if value is None or isinstance(value, bool):
        return value
    # Subclasses, such as enums and NumPy's float, count as their base type.
    for kind, plain in _SCALARS:
        if isinstance(value, kind):
            return plain(value)
    if id(value) in inside:
        return ["circular"]
    inside = (*inside, id(value))
    if isinstance(value, Mapping):
        pairs = cast(Mapping[Any, Any], value).items()
        return ["mapping", _ordered([_plain(name, inside), _plain(item, inside)] for name, item in pairs)]
    if isinstance(value, (list, tuple)):
        return ["sequence", [_plain(item, inside) for item in cast(Iterable[Any], value)]]
    if isinstance(value, (set, frozenset)):
        return ["set", _ordered(_plain(item, inside) for item in cast(Iterable[Any], value))]
    return _plain_object(value, inside)


def _plain_object(value: Any, inside: tuple[int, ...]) -> Any:
    name = f"{type(value).__module__}.{type(value).__qualname__}"
    if callable(as_list := getattr(value, "tolist", None)):
        # The repr of a large array leaves most of it out.
        return [name, _plain(as_list(), inside)]
    if callable(value) and hasattr(value, "__qualname__"):
        # The repr of a function contains its address in memory.
        return [name, value.__module__, value.__qualname__]
    if is_dataclass(value) and not isinstance(value, type):
        return [name, [_plain(getattr(value, field.name, None), inside) for field in fields(value)]]
    if type(value).__repr__ is not object.__repr__:
        return [name, repr(value)]
    return [name, _plain(getattr(value, "__dict__", None), inside)]


def _ordered(items: Iterable[Any]) -> list[Any]:
    return sorted(items, key=json.dumps)
