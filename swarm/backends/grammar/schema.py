"""The limits and options that hold for a grammar in every sampler.

Place in the flow: compiler.py and lark.py read a grammar here, so that one request means the same wherever it is
sampled. This module needs no parser.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from swarm.errors import BadRequest
from swarm.types import Grammar, GrammarKind

LARGEST_TEXT = 2**16
"""Bytes of a grammar. The costliest known schema of this size compiles in half a second."""
WHITESPACE = r"[ \n\r\t]{1,32}"
"""Whitespace between the tokens of JSON, unless the schema sets it. Without a bound, a weak model may write blanks
until its limit. A Lark grammar sets its own, as `"x-guidance": {"whitespace_pattern": ...}` in each schema after
`%json`."""
ANY_OBJECT = '{"type": "object"}'


def check_size(grammar: Grammar) -> None:
    """Raise BadRequest for a grammar that is too large."""
    if len(grammar.text.encode()) > LARGEST_TEXT:
        raise BadRequest(f"{name_of(grammar)} is larger than {LARGEST_TEXT} bytes: make it smaller")


def name_of(grammar: Grammar) -> str:
    """Return how messages call a grammar."""
    return f"the {grammar.kind.value.replace('_', ' ')} to follow"


def read_schema(grammar: Grammar) -> dict[str, Any]:
    """Return the schema of a JSON grammar. Raise ValueError or RecursionError for an invalid one."""
    is_any = grammar.kind is GrammarKind.JSON_OBJECT and not grammar.text
    schema = json.loads(ANY_OBJECT if is_any else grammar.text)
    if not isinstance(schema, dict):
        raise ValueError("a JSON schema must be an object")
    return cast("dict[str, Any]", schema)


def json_options(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return llguidance's options for JSON of this schema; the schema may set the separators that they leave open.

    An unenforceable keyword is refused, not skipped, whatever options the schema contains.
    """
    own: object = schema.get("x-guidance")
    is_fixed = isinstance(own, dict) and cast("dict[str, Any]", own).get("whitespace_flexible") is False
    return {"lenient": False, "coerce_one_of": False, "whitespace_pattern": None if is_fixed else WHITESPACE}
