"""Grammars of forced tool calls, in llguidance's Lark.

Place in the flow: below the formats, which say what stands around names and arguments; the engine enforces the result.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from swarm.errors import BadRequest
from swarm.types import Grammar, GrammarKind, ToolChoice, ToolSpec

WHITESPACE = r"[ \n\r\t]{1,32}"
"""Between the tokens of JSON arguments. Without a bound a weak model may write blanks until its limit."""


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
    return {**schema, "type": "object", "x-guidance": {"whitespace_pattern": WHITESPACE}}
