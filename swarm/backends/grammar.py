"""Grammars: the tokens that may come next, so that a completion is a sentence of the requested language."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Collection, Mapping
from typing import Any, cast

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from tokenizers import Tokenizer

from swarm.backends.token_texts import corrected
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
KEPT_GRAMMARS = 256
LONGEST_REASON = 300
WORD_BITS = 32


class GrammarCompiler:
    """Compiler of grammars for one tokenizer, which caches the most recent. Used from one thread."""

    def __init__(self, tokenizer: Tokenizer, vocabulary: int, end_ids: Collection[int]) -> None:
        """Set the tokenizer. `vocabulary` is the width of the logits; `end_ids` are the model's own end tokens."""
        self._text_tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._end_id = min(end_ids, default=None)
        # This takes up to a second for a large vocabulary, so it is built with the first grammar.
        self._tokenizer: LLTokenizer | None = None
        self._kept: OrderedDict[Grammar, LLMatcher] = OrderedDict()

    def start(self, grammar: Grammar, end_ids: Collection[int]) -> Constraint:
        """Return a constraint before the first token. `end_ids` end this completion.

        Raise BadRequest with the reason if the grammar is malformed, too large, or not enforceable.
        """
        if self._tokenizer is None:
            self._tokenizer = self._build_tokenizer()
        matcher = self._kept.get(grammar)
        if matcher is None:
            matcher = self._kept[grammar] = _compile(grammar, self._tokenizer)
            if len(self._kept) > KEPT_GRAMMARS:
                self._kept.popitem(last=False)
        else:
            self._kept.move_to_end(grammar)
        constraint = Constraint(matcher.deep_copy(), end_ids, self._tokenizer.eos_token, self._vocabulary)
        if constraint.allowed() is None:
            del self._kept[grammar]
            raise BadRequest(f"{name_of(grammar)} allows no completion at all: {constraint.error}")
        return constraint

    def _build_tokenizer(self) -> LLTokenizer:
        plain = Tokenizer.from_str(self._text_tokenizer.to_str())
        plain.no_padding()
        plain.no_truncation()
        try:
            base = LLTokenizer(plain.to_str(), n_vocab=self._vocabulary, eos_token=self._end_id)
            return corrected(base, plain.get_added_tokens_decoder())
        except ValueError as error:
            raise BadRequest(f"this model's tokenizer cannot follow grammars: {_one_line(str(error))}") from error


class Constraint:
    """State of one completion in its grammar."""

    def __init__(self, matcher: LLMatcher, end_ids: Collection[int], known_end_id: int, vocabulary: int) -> None:
        """Start at the beginning of the grammar.

        `end_ids` are allowed where the grammar may end. The matcher by itself allows only `known_end_id` there.
        """
        self.error: BadRequest | None = None
        self._matcher = matcher
        self._words = np.zeros(-(-vocabulary // WORD_BITS), dtype=np.uint32)
        self._ends_by_token = bool(end_ids)
        self._more_ends = [_place(each) for each in end_ids if each != known_end_id]
        self._no_end = None if known_end_id in end_ids else _place(known_end_id)

    @property
    def is_over(self) -> bool:
        """True if the sentence is complete and cannot continue, and no end token exists to mark this."""
        return not self._ends_by_token and self._matcher.is_stopped() and not self._matcher.is_error()

    def allowed(self) -> np.ndarray | None:
        """Return the tokens that may come next, one bit each, lowest bit first, in words of 32.

        Return None, with the reason in `error`, if no token may come or the parser reached its limits. The result is
        valid until the next call.
        """
        words = self._words
        self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        if self._no_end is not None:
            word, bit = self._no_end
            words[word] &= ~bit
        if self._more_ends and self._matcher.is_accepting():
            for word, bit in self._more_ends:
                words[word] |= bit
        if self._matcher.is_error():
            self.error = BadRequest(f"the grammar cannot be followed any further: {_reason(self._matcher)}")
        elif not words.any():
            self.error = BadRequest("the grammar cannot be followed any further: no token fits")
        return None if self.error else words

    def take(self, token_id: int) -> None:
        """Advance by a sampled token, unless it has ended the completion."""
        self._matcher.consume_token(token_id)


def _compile(grammar: Grammar, tokenizer: LLTokenizer) -> LLMatcher:
    check_size(grammar)
    try:
        source = _source(grammar)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"{name_of(grammar)} is malformed: {_one_line(str(error))}") from error
    matcher = LLMatcher(
        tokenizer, source, log_level=0, limits=LLParserLimits(step_max_items=LARGEST_STEP, verbose_errors=False)
    )
    if matcher.is_error():
        raise BadRequest(f"{name_of(grammar)} cannot be enforced: {_reason(matcher)}")
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


def _place(token_id: int) -> tuple[int, np.uint32]:
    return token_id // WORD_BITS, np.uint32(1 << token_id % WORD_BITS)


def _reason(matcher: LLMatcher) -> str:
    if "coerce_one_of" in (reason := matcher.get_error()):
        return "oneOf whose branches may both match is not supported, use anyOf"
    return _one_line(reason)


def _one_line(text: str) -> str:
    return " ".join(text.split())[:LONGEST_REASON]


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
