"""Grammars of forced tool calls, in llguidance's Lark."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, cast

from swarm.errors import BadRequest
from swarm.types import Grammar, GrammarKind, ToolChoice, ToolSpec

SEPARATORS: Mapping[str, object] = MappingProxyType(
    {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
)
"""The separators of JSON arguments, as llguidance options: those that chat templates write.

The model may not choose blanks, because a small model may write as many as it is allowed. The options are part of a
grammar's text, so a recorded grammar keeps the options that it was recorded with.
"""
LARGEST_INTEGER = 2**53 - 1
"""The largest integer that every JSON reader represents exactly (RFC 8259). Without a bound a small model may write
digits until its limit."""
_PLAIN_KEYWORDS = frozenset(
    ("$schema", "$defs", "definitions", "title", "description", "default", "examples", "type", "properties", "required")
)
"""The keywords that limit neither the further fields of an object nor the size of a number."""


@dataclass(frozen=True, slots=True)
class CallForm:
    """The Lark expressions of one format: `first` and `last` enclose all calls, `between` separates two of them.

    A name is written as JSON unless `is_bare`.
    """

    first: str
    before_name: str
    before_arguments: str
    behind_arguments: str
    between: str
    last: str = ""
    is_bare: bool = False


def forced_grammar(form: CallForm, tools: Sequence[ToolSpec], choice: ToolChoice, before: str = "") -> Grammar:
    """Return a grammar for calls of `tools` in this form, after the Lark expression `before`.

    Every schema is a root of its own, so that its references resolve. Raise BadRequest for parameters that are not the
    schema of an object.
    """
    repeated = f"({form.between} call)*" if choice.parallel else ""
    names = [str(tool["function"]["name"]) for tool in tools]
    lines = [
        " ".join(filter(None, ("start:", before, form.first, "call", repeated, form.last))),
        "call: " + " | ".join(f"call_{index}" for index in range(len(tools))),
    ]
    for index, (name, tool) in enumerate(zip(names, tools, strict=True)):
        written = literal(name if form.is_bare else json.dumps(name, ensure_ascii=False))
        expressions = (form.before_name, written, form.before_arguments, f"arguments_{index}", form.behind_arguments)
        lines.append(f"call_{index}: {' '.join(filter(None, expressions))}")
        lines.append(f"arguments_{index}: %json {json.dumps(_arguments_schema(name, tool))}")
    return Grammar(GrammarKind.LARK, "\n".join(lines) + "\n")


def literal(text: str) -> str:
    """Return a text as a Lark string."""
    return json.dumps(text, ensure_ascii=False)


def mark(text: str, special_ids: Mapping[str, int]) -> str:
    """Return a mark as its special token, which no text can spell, or as text."""
    return f"<[{special_ids[text]}]>" if text in special_ids else literal(text)


def _arguments_schema(name: str, tool: ToolSpec) -> dict[str, Any]:
    parameters: object = tool["function"].get("parameters")
    fields: object = {} if parameters is None else parameters
    schema = cast("dict[str, Any]", fields) if isinstance(fields, dict) else {"type": None}
    if schema.get("type", "object") != "object":
        raise BadRequest(f"tools: the parameters of {name} must be a JSON schema of type object", param="tools")
    # This replaces options in the schema itself, too: they could tell the engine to skip what it cannot enforce.
    return {**_ending(schema), "type": "object", "x-guidance": dict(SEPARATORS)}


def _ending(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema whose values have an end: integers are bounded, and only named parameters are allowed.

    Limits that the schema sets itself stay as they are.
    """
    named: object = schema.get("properties", {})
    if not isinstance(named, dict):
        return schema
    properties = {name: _bounded(each) for name, each in cast("dict[str, Any]", named).items()}
    bounded = {**schema, "properties": properties} if properties else schema
    required: object = schema.get("required")
    names = cast("list[object]", required) if isinstance(required, list) else []
    is_named = all(each in list(properties) for each in names)
    if schema.keys() - _PLAIN_KEYWORDS or (schema and "properties" not in schema) or not is_named:
        return bounded
    return {**bounded, "additionalProperties": False}


def _bounded(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    fields = cast("dict[str, Any]", schema)
    if fields.get("type") != "integer" or fields.keys() - _PLAIN_KEYWORDS:
        return fields
    return {**fields, "minimum": -LARGEST_INTEGER, "maximum": LARGEST_INTEGER}
