"""The words of a topic as tokens, each with its meaning."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any

from researcher.question.factors import SPECS
from researcher.question.words import (
    ASKED,
    COUNTED,
    EQUAL,
    HARMLESS,
    NAMES_OF_ENVIRONMENTS,
    OPTIMIZES,
    VERBS_OF_ENVIRONMENTS,
)
from swarm.environments import LIBRARIES


class TokenKind(StrEnum):
    """The kind of a token's meaning.

    READ is a number that has been assigned to its setting.
    """

    WORD = "word"
    NUMBER = "number"
    STOP = "stop"
    REFERENCE = "reference"
    PATH = "path"
    HARMLESS = "harmless"
    ASKED = "asked"
    OPTIMIZES = "optimizes"
    EQUAL = "equal"
    COUNT = "count"
    ENVIRONMENT = "environment"
    SETTING = "setting"
    VALUE = "value"
    READ = "read"


@dataclass(slots=True)
class Token:
    """A word or number of the topic, or several words with one meaning."""

    text: str
    kind: TokenKind
    meaning: Any = None

    @property
    def key(self) -> str:
        return key_of(self.text)


_VERB = "environment verb"
_NUMBER = r"10\^-\d+|[-−]?(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][-−+]?\d+)?"
_TOKEN = re.compile(
    rf"(?P<reference>(?:{'|'.join(LIBRARIES)}):[\w./@-]*\w(?:\?[\w=&.,-]*\w)?)"
    r"|(?P<path>(?:~|\.{1,2})?/[\w./@-]*\w(?:\?[\w=&.,-]*\w)?)"
    # 8,16 may be two numbers, or one in some languages; a part of arithmetic or of a range is not a number.
    r"|(?P<word>(?<![\w.])\d+(?:,\d+)+(?![\w.]*[eE.]\d))"
    rf"|(?P<number>(?<![\w.*^±<>~×/–+-])(?:{_NUMBER})(?![\w*^±×/–%+-]|\.\d|\s*[*^±×]))"
    r"|(?P<stop>\.{2,}|…|[,;:!?()]|\.(?=\s|$))"
    r"|(?P<other>[^\s,;:!?()]+?)(?=[\s,;:!?()]|\.(?:\s|$)|$)",
)


def tokenize(text: str) -> list[Token]:
    """Return the tokens of a topic; the longest run of words with a meaning is one token."""
    found: list[Token] = []
    for match in _TOKEN.finditer(text):
        if match.lastgroup in ("word", "other"):
            found.append(Token(match.group().strip("\"'“”‘’").removesuffix("'s"), TokenKind.WORD))
        elif match.group() in ("…",) or match.group().startswith(".."):
            found.append(Token(match.group(), TokenKind.PATH if match.lastgroup == "path" else TokenKind.WORD))
        else:
            found.append(Token(match.group(), TokenKind(str(match.lastgroup))))
    return _merge(found)


def key_of(phrase: str) -> str:
    """Return a phrase without case, hyphens, underscores and possessives, for look-ups."""
    plain = phrase.lower().replace("’", "'").replace("'s ", " ")
    return re.sub(r"[\s_-]+", " ", plain).strip()


def _merge(tokens: Sequence[Token]) -> list[Token]:
    merged: list[Token] = []
    position = 0
    while position < len(tokens):
        length = next((size for size in range(_longest(), 0, -1) if _find(tokens, position, size, merged)), 0)
        known = _find(tokens, position, length, merged) if length else None
        if known is None:
            merged.append(tokens[position])
            position += 1
            continue
        merged.append(Token(" ".join(token.text for token in tokens[position : position + length]), *known))
        position += length
    return merged


def _find(tokens: Sequence[Token], start: int, length: int, before: Sequence[Token]) -> tuple[TokenKind, Any] | None:
    """Return the meaning of the words from `start`; None if they have none."""
    run = tokens[start : start + length]
    if len(run) < length or any(token.kind is not TokenKind.WORD for token in run):
        return None
    known = _lexicon().get(key_of(" ".join(token.text for token in run)))
    if known is None:
        return None
    kind, meaning = known
    if kind != _VERB:
        return TokenKind(kind), meaning
    # "add" is an environment after "on" and a verb elsewhere.
    is_named = bool(before) and before[-1].key in ("on", "for", "train", "trains", "training", "environment", "task")
    return (TokenKind.ENVIRONMENT, meaning) if is_named else None


@cache
def _lexicon() -> Mapping[str, tuple[str, Any]]:
    """Return every phrase that a topic may use, by its key."""
    found: dict[str, tuple[str, Any]] = {key_of(word): (TokenKind.HARMLESS, None) for word in HARMLESS}
    found |= {key_of(phrase): (TokenKind.ASKED, asked) for phrase, asked in ASKED.items()}
    found |= {key_of(phrase): (TokenKind.OPTIMIZES, None) for phrase in OPTIMIZES}
    found |= {key_of(phrase): (TokenKind.EQUAL, unit) for phrase, unit in EQUAL.items()}
    found |= {key_of(phrase): (TokenKind.COUNT, name) for phrase, name in COUNTED.items()}
    found |= {key_of(phrase): (TokenKind.ENVIRONMENT, name) for phrase, name in NAMES_OF_ENVIRONMENTS.items()}
    found |= {key_of(name): (_VERB, name) for name in VERBS_OF_ENVIRONMENTS}
    for spec in SPECS.values():
        for phrase in (spec.name, spec.title, *spec.aliases):
            for form in (phrase, f"{phrase}s", f"{phrase}es"):
                found[key_of(form)] = (TokenKind.SETTING, spec.name)
        for phrase, value in spec.values.items():
            if phrase not in ("on", "off"):
                found[key_of(phrase)] = (TokenKind.VALUE, (spec.name, value))
    return found


@cache
def _longest() -> int:
    return max(key.count(" ") + 1 for key in _lexicon())
