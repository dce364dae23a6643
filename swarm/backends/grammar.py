"""Grammars: the tokens that may come next, so that a completion is a sentence of the requested language."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Collection
from typing import Any, cast

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from tokenizers import Tokenizer

from swarm.backends.token_texts import corrected
from swarm.errors import BadRequest
from swarm.grammars import check_size, compile_grammar, json_options, name_of, one_line, read_schema, reason_of
from swarm.types import Grammar, GrammarKind

KEPT_GRAMMARS = 256
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
            matcher = self._kept[grammar] = compile_grammar(grammar, self._tokenizer)
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
            raise BadRequest(f"this model's tokenizer cannot follow grammars: {one_line(str(error))}") from error


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
            self.error = BadRequest(f"the grammar cannot be followed any further: {reason_of(self._matcher)}")
        elif not words.any():
            self.error = BadRequest("the grammar cannot be followed any further: no token fits")
        return None if self.error else words

    def take(self, token_id: int) -> None:
        """Advance by a sampled token, unless it has ended the completion."""
        self._matcher.consume_token(token_id)


def _place(token_id: int) -> tuple[int, np.uint32]:
    return token_id // WORD_BITS, np.uint32(1 << token_id % WORD_BITS)


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
