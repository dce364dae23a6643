"""What a topic looks for: a reward, an order of tasks, a workflow or settings."""

from __future__ import annotations

from collections.abc import Sequence

from researcher.question.tokens import Token, TokenKind
from researcher.question.words import (
    CLOSED_QUESTIONS,
    HARMLESS,
    MOST_BETWEEN,
    NOT_SOUGHT,
    OPEN_QUESTIONS,
    PRAISES,
    SEEKS,
)
from researcher.scope import ArmPart

_BETWEEN = (TokenKind.WORD, TokenKind.HARMLESS, TokenKind.ASKED)
_COMPOUND = (TokenKind.WORD, TokenKind.SETTING, TokenKind.VALUE, TokenKind.COUNT)
"""The kinds of a token behind a part that make it something else, as in "reward model"."""

_ENDS_SENTENCE = (".", "?", "!")


def find_sought(tokens: Sequence[Token]) -> tuple[ArmPart, ...]:
    """Return the parts of an arm that a topic looks for, and give their tokens the kind OPTIMIZES.

    A part is looked for behind a word such as "find", and as the first words of a sentence: "a good reward for ...".
    Further parts may follow with "and" or "or". Elsewhere the words for parts look for nothing.
    """
    found: dict[ArmPart, None] = {}
    looks = False
    for index, token in enumerate(tokens):
        is_first = index == 0 or tokens[index - 1].text in _ENDS_SENTENCE
        if is_first:
            looks = token.key not in CLOSED_QUESTIONS
        if looks and token.kind is TokenKind.OPTIMIZES and token.meaning is not None:
            found[token.meaning] = None
            _read_further(tokens, index + 1, found)
        elif looks and _begins(token, is_first=is_first):
            _read(tokens, index, found)
    for token in tokens:
        if token.kind is TokenKind.PART:
            token.kind = TokenKind.HARMLESS if token.key in HARMLESS else TokenKind.WORD
    return tuple(part for part in ArmPart if part in found)


def _begins(token: Token, *, is_first: bool) -> bool:
    """Return whether what follows, or begins, at a token may be looked for."""
    return token.key in SEEKS or (is_first and token.key in (*OPEN_QUESTIONS, *PRAISES, "the"))


def _read(tokens: Sequence[Token], start: int, found: dict[ArmPart, None]) -> None:
    """Add the part that the words from `start` look for, with those that follow."""
    place = start
    while place < len(tokens) and tokens[place].key in (*SEEKS, *OPEN_QUESTIONS):
        place += 1
    end = _end_of_part(tokens, place)
    between = {token.key for token in tokens[start:end]}
    if end == 0 or (start == place and not between & PRAISES):
        return
    found[tokens[end - 1].meaning] = None
    for token in tokens[start:end]:
        token.kind = TokenKind.OPTIMIZES
    _read_further(tokens, end, found)


def _read_further(tokens: Sequence[Token], end: int, found: dict[ArmPart, None]) -> None:
    while end < len(tokens) and tokens[end].key in ("and", "or", ","):
        start, end = end + 1, _end_of_part(tokens, end + 1)
        if end == 0:
            return
        found[tokens[end - 1].meaning] = None
        for token in tokens[start:end]:
            token.kind = TokenKind.OPTIMIZES


def _end_of_part(tokens: Sequence[Token], start: int) -> int:
    """Return the place behind the part that begins at `start` or a few words after it; 0 if there is none."""
    for index in range(start, min(len(tokens), start + MOST_BETWEEN + 1)):
        token, after = tokens[index], tokens[index + 1] if index + 1 < len(tokens) else None
        if token.kind is TokenKind.PART and (after is None or after.kind not in (*_COMPOUND, TokenKind.PART)):
            return index + 1
        if token.kind is not TokenKind.PART and (token.kind not in _BETWEEN or token.key in NOT_SOUGHT):
            return 0
    return 0
