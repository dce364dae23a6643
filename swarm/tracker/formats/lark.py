"""Grammars of forced tool calls, in llguidance's Lark.

Place in the flow: below the formats, which say what stands around names and arguments; the engine enforces the result.
"""

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
"""Between the tokens of JSON arguments, in llguidance's options: as chat templates write them.

No blank is the model's to choose: a small one may write as many as it is allowed. The options are part of a grammar's
text, so that what was recorded with others is still followed with those.
"""
LARGEST_INTEGER = 2**53 - 1
"""What every reader of JSON can hold (RFC 8259). Without a bound a small model may write digits until its limit."""
_PLAIN_KEYWORDS = frozenset(
    ("$schema", "$defs", "definitions", "title", "description", "default", "examples", "type", "properties", "required")
)
"""Those that say nothing of what else an object holds, or how large a number is."""


@dataclass(frozen=True, slots=True)
class CallForm:
    """Lark expressions: `first` and `last` stand around all calls, `between` separates two of them.

    A name is written as JSON unless `is_bare`.
    """

    first: str
    before_name: str
    before_arguments: str
    behind_arguments: str
    between: str
    last: str = ""
    is_bare: bool = False


def forced_grammar(form: CallForm, tools: Sequence[ToolSpec], choice: ToolChoice, before: str) -> Grammar:
    """Calls of `tools` in this form behind `before`. Raises BadRequest for parameters that are no schema of an object.

    Every schema is a root of its own, so that its references hold.
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
    """A text as a Lark string."""
    return json.dumps(text, ensure_ascii=False)


def mark(text: str, special_ids: Mapping[str, int]) -> str:
    """A mark as its special token, which no text can spell, or as text."""
    return f"<[{special_ids[text]}]>" if text in special_ids else literal(text)


def _arguments_schema(name: str, tool: ToolSpec) -> dict[str, Any]:
    parameters: object = tool["function"].get("parameters")
    fields: object = {} if parameters is None else parameters
    schema = cast("dict[str, Any]", fields) if isinstance(fields, dict) else {"type": None}
    if schema.get("type", "object") != "object":
        raise BadRequest(f"tools: the parameters of {name} must be a JSON schema of type object", param="tools")
    # In place of options hidden in the schema, too: a keyword that cannot be enforced must not be skipped.
    return {**_ending(schema), "type": "object", "x-guidance": dict(SEPARATORS)}


def _ending(schema: dict[str, Any]) -> dict[str, Any]:
    """The part of a schema that comes to an end: integers that do, and no parameters but those it names.

    What a schema itself says of either is left alone.
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
