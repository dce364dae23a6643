"""Grammars in the notation of llguidance, for samplers that compile them in another process.

Place in the flow: the adapter of a sampler asks when a request has a grammar, and passes the text on. The grammar means
the same there as in the local sampler. This module knows nothing of HTTP.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Any, cast

from swarm.backends.grammar.schema import check_size, json_options, name_of, read_schema
from swarm.errors import BadRequest
from swarm.types import Grammar, GrammarKind


def write_lark(grammar: Grammar, end_ids: Collection[int], eos_id: int | None) -> str:
    """Return a grammar in llguidance's Lark notation. Where it may end, any of `end_ids` may come.

    `eos_id` is the tokenizer's own. Raise BadRequest for a grammar that is too large or not a JSON schema.
    """
    check_size(grammar)
    # By itself, llguidance allows only `eos_id` there.
    if set(end_ids) - {eos_id}:
        ends = " | ".join(f"<[{token_id}]>" for token_id in sorted(end_ids))
        return f"start: whole_text end_token?\nwhole_text: {_expression(grammar)}\nend_token: {ends}\n"
    if grammar.kind is GrammarKind.LARK:
        return grammar.text
    return f"start: {_expression(grammar)}\n"


def _expression(grammar: Grammar) -> str:
    """Return the right side of a rule."""
    match grammar.kind:
        case GrammarKind.REGEX:
            return f"/{_as_literal(grammar.text)}/"
        case GrammarKind.LARK:
            return f"%lark {{\n{grammar.text}\n}}"
        case GrammarKind.JSON_OBJECT | GrammarKind.JSON_SCHEMA:
            try:
                return _of_schema(read_schema(grammar))
            except (ValueError, RecursionError) as error:
                raise BadRequest(f"{name_of(grammar)} is malformed: {error}") from error


def _of_schema(schema: dict[str, Any]) -> str:
    own = cast("dict[str, Any]", schema.get("x-guidance") or {})
    return "%json " + json.dumps({**schema, "x-guidance": {**own, **json_options(schema)}})


def _as_literal(pattern: str) -> str:
    """Return a pattern for use between slashes: unescaped slashes are escaped."""
    written = {"/": r"\/", "\n": r"\n", "\\\n": r"\n"}
    return re.sub(r"\\.|/|\n", lambda found: written.get(found[0], found[0]), pattern, flags=re.DOTALL)
