"""What a grammar says: its text for llguidance, whether it can be enforced, and the texts that follow it."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, cast

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

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


LARGEST_STEP = 10_000
"""Parser items of one mask, far beyond any JSON. A more ambiguous grammar would delay every request in the batch."""
LONGEST_REASON = 300
_TOKEN = re.compile(r"<\[(\d+)\]>")


class TextGrammar:
    """A grammar that whole texts are compared with, without the tokenizer of any model."""

    def __init__(self, grammar: Grammar, token_texts: Mapping[int, str]) -> None:
        """Read a grammar. `token_texts` are the texts of the tokens that a Lark grammar names by their ids.

        Raise BadRequest if it is malformed, too large, or not enforceable.
        """
        text = grammar.text
        if grammar.kind is GrammarKind.LARK:
            text = _TOKEN.sub(lambda found: json.dumps(token_texts.get(int(found[1]), "")), text)
        # Each byte is a token of its own.
        self._tokenizer = LLTokenizer("byte")
        self._start = compile_grammar(Grammar(grammar.kind, text), self._tokenizer)

    def admits(self, text: str, *, is_whole: bool = True) -> bool:
        """Return whether the grammar allows exactly this text, or without `is_whole` a text that begins with it."""
        matcher, tokens = self._start.deep_copy(), self._tokenizer.tokenize_bytes(text.encode())
        return matcher.try_consume_tokens(tokens) == len(tokens) and (not is_whole or matcher.is_accepting())


def compile_grammar(grammar: Grammar, tokenizer: LLTokenizer) -> LLMatcher:
    """Return the parser of a grammar. Raise BadRequest if it is malformed, too large, or not enforceable."""
    check_size(grammar)
    try:
        source = _source(grammar)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"{name_of(grammar)} is malformed: {one_line(str(error))}") from error
    matcher = LLMatcher(
        tokenizer, source, log_level=0, limits=LLParserLimits(step_max_items=LARGEST_STEP, verbose_errors=False)
    )
    if matcher.is_error():
        raise BadRequest(f"{name_of(grammar)} cannot be enforced: {reason_of(matcher)}")
    return matcher


def _source(grammar: Grammar) -> str:
    """Return the grammar in llguidance's own notation. Raise ValueError if it is malformed."""
    match grammar.kind:
        case GrammarKind.REGEX:
            return LLMatcher.grammar_from_regex(grammar.text)
        case GrammarKind.LARK:
            return LLMatcher.grammar_from_lark(grammar.text)
        case GrammarKind.JSON_OBJECT | GrammarKind.JSON_SCHEMA:
            schema = read_schema(grammar)
            return LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=cast(Any, json_options(schema)))


def reason_of(matcher: LLMatcher) -> str:
    """Return why a parser stopped, as one line."""
    if "coerce_one_of" in (reason := matcher.get_error()):
        return "oneOf whose branches may both match is not supported, use anyOf"
    return one_line(reason)


def one_line(text: str) -> str:
    """Return the beginning of a text without line breaks."""
    return " ".join(text.split())[:LONGEST_REASON]
