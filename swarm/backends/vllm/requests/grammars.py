"""Grammars in the form of vLLM's guidance backend, with the same meaning as in the local sampler.

Place in the flow: wire.py asks when a request has a grammar. vLLM compiles the result with llguidance. This module
knows nothing of HTTP.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Any, cast

from swarm.backends.local.decoding.grammar import LARGEST_TEXT, json_options, read_schema
from swarm.errors import BadRequest
from swarm.types import Grammar, GrammarKind


def structured_outputs(grammar: Grammar, end_ids: Collection[int], eos_id: int | None) -> dict[str, str]:
    """Return vLLM's field of that name. Where the grammar may end, any of `end_ids` may come.

    `eos_id` is the tokenizer's own. Raise BadRequest for a grammar that is too large or not a JSON schema.
    """
    if len(grammar.text.encode()) > LARGEST_TEXT:
        raise BadRequest(f"{_name(grammar)} is larger than {LARGEST_TEXT} bytes: make it smaller")
    # By itself, vLLM allows only `eos_id` there.
    if set(end_ids) - {eos_id}:
        ends = " | ".join(f"<[{token_id}]>" for token_id in sorted(end_ids))
        return {"grammar": f"start: whole_text end_token?\nwhole_text: {_expression(grammar)}\nend_token: {ends}\n"}
    if grammar.kind is GrammarKind.LARK:
        return {"grammar": grammar.text}
    return {"grammar": f"start: {_expression(grammar)}\n"}


def _expression(grammar: Grammar) -> str:
    """Return a grammar in llguidance's Lark notation."""
    match grammar.kind:
        case GrammarKind.REGEX:
            return f"/{_as_literal(grammar.text)}/"
        case GrammarKind.LARK:
            return f"%lark {{\n{grammar.text}\n}}"
        case GrammarKind.JSON_OBJECT | GrammarKind.JSON_SCHEMA:
            try:
                return _of_schema(read_schema(grammar))
            except (ValueError, RecursionError) as error:
                raise BadRequest(f"{_name(grammar)} is malformed: {error}") from error


def _of_schema(schema: dict[str, Any]) -> str:
    own = cast("dict[str, Any]", schema.get("x-guidance") or {})
    return "%json " + json.dumps({**schema, "x-guidance": {**own, **json_options(schema)}})


def _as_literal(pattern: str) -> str:
    """Return a pattern for use between slashes: unescaped slashes are escaped."""
    written = {"/": r"\/", "\n": r"\n", "\\\n": r"\n"}
    return re.sub(r"\\.|/|\n", lambda found: written.get(found[0], found[0]), pattern, flags=re.DOTALL)


def _name(grammar: Grammar) -> str:
    return f"the {grammar.kind.value.replace('_', ' ')} to follow"
