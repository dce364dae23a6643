"""The words and numbers of a topic as tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from functools import cache
from typing import Any

from researcher.question.factors import SPECS
from researcher.question.words import (
    ASKED,
    BEFORE_MODELS,
    COUNTED,
    EQUAL,
    HARMLESS,
    NAMES_OF_ENVIRONMENTS,
    NUMBERS,
    OPTIMIZES,
    PARTS,
    SEEKS,
    VERBS_OF_ENVIRONMENTS,
)
from researcher.scope import ArmPart
from swarm.environments import LIBRARIES
from swarm.model_path import has_name


class TokenKind(StrEnum):
    """The kind of a token's meaning.

    READ is a token that has been assigned to its setting or count.
    """

    WORD = "word"
    NUMBER = "number"
    STOP = "stop"
    REFERENCE = "reference"
    PATH = "path"
    HARMLESS = "harmless"
    ASKED = "asked"
    OPTIMIZES = "optimizes"
    PART = "part"
    EQUAL = "equal"
    COUNT = "count"
    ENVIRONMENT = "environment"
    SETTING = "setting"
    VALUE = "value"
    READ = "read"


@dataclass(slots=True)
class Token:
    """A word or number of the topic, or several words with one meaning; `is_apart` says that a space precedes it."""

    text: str
    kind: TokenKind
    meaning: Any = None
    is_apart: bool = True

    @property
    def key(self) -> str:
        return key_of(self.text)

    @property
    def number(self) -> str:
        """The number of a NUMBER as plain text: "1,000", "1k" and "1e3" are 1000, and "two" is 2."""
        text = NUMBERS.get(self.key) or self.text.replace("−", "-").replace("10^", "1e").replace(",", "")
        value = Decimal(re.sub("[kK]$", "e3", text))
        # A whole number needs no point or exponent, which a setting of whole numbers would refuse.
        return f"{value:f}" if value == value.to_integral_value() and value.adjusted() < LONGEST_NUMBER else str(value)


LONGEST_NUMBER = 15
"""The number of digits up to which a whole number is written out."""
DIGITS_OF_A_GROUP = 3
"""The number of digits behind a comma that may be thousands: 128,256 may be one number."""
_VERB = "environment verb"
_PLAIN = r"\d+(?:\.\d+)?|\.\d+"
_THOUSANDS = r"[1-9],\d{3}(?=\s+(?:training\s+)?(?:steps|episodes)\b)"
"""One to nine thousand and more of what follows; 10,100 steps may be two levels."""
_NUMBER = rf"{_THOUSANDS}|10\^-\d+|[-−]?(?:[1-9]\d{{0,2}}(?:,000)+(?![\d,]*\d)|(?:{_PLAIN})(?:[eE][-−+]?\d+|[kK]\b)?)"
_IN_LIST = rf"(?:10\^-\d+|(?:{_PLAIN})(?:[eE][-−+]?\d+|[kK]\b)?)"
_ENDS = r"\s,;:!?(){}=\[\]"
_TOKEN = re.compile(
    rf"(?P<reference>(?:{'|'.join(LIBRARIES)}):[\w./@-]*\w(?:\?[\w=&.,-]*\w)?)"
    r"|(?P<path>(?:~|\.{1,2})?/[\w./@-]*\w(?:\?[\w=&.,-]*\w)?)"
    r"|(?P<arrow>-{1,2}>|→)"
    # A part of arithmetic is not a number.
    rf"|(?P<number>(?<![\w.*^±<~×/–+-])(?<!(?<!-)>)(?<!\d,)(?:{_NUMBER})"
    r"(?![\w*^±×/–%+]|-(?!-?>)|,\.?\d|\.\d|\.{2,}\d|\s*[*^±×]))"
    # Numbers without spaces are levels, one number, a fraction or a range: what they are said of decides.
    rf"|(?P<list>(?<![\w.*^±<>~×/–+-]){_IN_LIST}(?:(?:,|/|-|–|\.\.){_IN_LIST})+(?![\w*^±×/–%+.-]*[\w%²³]|\s*[*^±×]))"
    rf"|(?P<stop>\.{{2,}}|…|[{_ENDS[2:].replace('=', '')}]|\.(?=\s|$))"
    rf"|(?P<other>=|vs\.(?=\s)|[^{_ENDS}]+?(?=[{_ENDS}]|→|-{{1,2}}>|\.(?:\s|$)|$))",
    re.IGNORECASE,
)
_IN_A_LIST = re.compile(rf"(?P<number>{_IN_LIST})|(?P<joint>,|/|-|–|\.\.)")


def tokenize(text: str) -> list[Token]:
    """Return the tokens of a topic; the longest run of words with a meaning is one token."""
    found: list[Token] = []
    for match in _TOKEN.finditer(text):
        is_apart = match.start() == 0 or text[match.start() - 1].isspace()
        if match.lastgroup == "list":
            found += _tokens_of_list(match.group(), is_apart)
        elif match.lastgroup == "other" and (names := _names_of_levels(match.group())):
            found += _joined(names, is_apart)
        elif match.lastgroup in ("arrow", "other"):
            word = match.group().strip("\"'“”‘’").removesuffix("'s")
            word = word.removesuffix(".") if word.lower() == "vs." else word
            found.append(Token(word, TokenKind.WORD, is_apart=is_apart))
        elif match.group() in ("…",) or match.group().startswith(".."):
            kind = TokenKind.PATH if match.lastgroup == "path" else TokenKind.WORD
            found.append(Token(match.group(), kind, is_apart=is_apart))
        else:
            found.append(Token(match.group(), TokenKind(str(match.lastgroup)), is_apart=is_apart))
    return _merge(found)


def _names_of_levels(word: str) -> list[str]:
    """Return the names with strokes between them, such as "GRPO/RLOO", if all are values of one setting."""
    names = word.split("/")
    known = [_lexicon().get(key_of(name), (TokenKind.WORD, None)) for name in names]
    settings = {meaning[0] if kind is TokenKind.VALUE else None for kind, meaning in known}
    return names if len(names) > 1 and None not in settings and len(settings) == 1 else []


def _joined(names: Sequence[str], is_apart: bool) -> Iterator[Token]:
    yield Token(names[0], TokenKind.WORD, is_apart=is_apart)
    for name in names[1:]:
        yield Token("vs", TokenKind.WORD)
        yield Token(name, TokenKind.WORD)


def _tokens_of_list(text: str, is_apart: bool) -> Iterator[Token]:
    """Yield the numbers and the signs between them.

    The meaning of a sign says of which settings it joins levels: "all", "whole" for those with whole numbers, or none,
    "grouped" if it may be within one number.
    """
    numbers = [match["number"] for match in _IN_A_LIST.finditer(text) if match["number"]]
    if any(re.match(r"0\d", number) for number in numbers):
        # Some languages write 0,05 for 0.05.
        yield Token(text, TokenKind.WORD, is_apart=is_apart)
        return
    # Nobody writes a fraction of decimals, nobody groups their digits, and 128,256 may be one number.
    decimals = [bool(re.search(r"[.ek^]", number, re.IGNORECASE)) for number in numbers]
    is_grouped = not any(decimals) and any(len(number) == DIGITS_OF_A_GROUP for number in numbers[1:])
    joins = {
        ",": "grouped" if is_grouped else "all" if any(decimals) else "whole",
        "/": "all" if any(decimals) else "whole",
    }
    for match in _IN_A_LIST.finditer(text):
        kind = TokenKind.NUMBER if match["number"] else TokenKind.WORD
        yield Token(match.group(), kind, joins.get(match.group()), is_apart=is_apart)
        is_apart = False


def as_written(tokens: Sequence[Token]) -> str:
    """Return the tokens as they stand in the topic."""
    return "".join(f" {token.text}" if token.is_apart else token.text for token in tokens).strip()


def key_of(phrase: str) -> str:
    """Return a phrase without case, hyphens, underscores and possessives, for look-ups."""
    plain = phrase.lower().replace("’", "'").replace("'s ", " ")
    return re.sub(r"[\s_-]+", " ", plain).strip()


def _merge(tokens: Sequence[Token]) -> list[Token]:
    """Return the tokens with each of the longest runs of words that have a meaning as one."""
    merged: list[Token] = []
    position = 0
    while position < len(tokens):
        length = next((size for size in range(_longest(), 0, -1) if _find(tokens, position, size, merged)), 0)
        known = _find(tokens, position, length, merged) if length else None
        if known is None:
            merged.append(tokens[position])
            position += 1
            continue
        run = tokens[position : position + length]
        merged.append(Token(" ".join(token.text for token in run), *known, is_apart=run[0].is_apart))
        position += length
    for before, stroke, after in zip(merged, merged[1:], merged[2:], strict=False):
        if stroke.key == "/" and before.kind is after.kind is TokenKind.NUMBER and stroke.meaning is None:
            is_decimal = any(re.search(r"[.eE^]", token.text) for token in (before, after))
            stroke.meaning = "all" if is_decimal else "whole"
    return merged


def _find(tokens: Sequence[Token], start: int, length: int, before: Sequence[Token]) -> tuple[TokenKind, Any] | None:
    """Return the meaning of the words from `start`; None if they have none."""
    run = tokens[start : start + length]
    if len(run) < length or any(token.kind is not TokenKind.WORD for token in run):
        return None
    known = _lexicon().get(key_of(" ".join(token.text for token in run)))
    if known is None:
        return _find_named_model(run, before)
    kind, meaning = known
    if kind != _VERB:
        return TokenKind(kind), meaning
    # "add" is an environment after "on" and a verb elsewhere.
    is_named = bool(before) and before[-1].key in ("on", "for", "train", "trains", "training", "environment", "task")
    return (TokenKind.ENVIRONMENT, meaning) if is_named else None


def _find_named_model(run: Sequence[Token], before: Sequence[Token]) -> tuple[TokenKind, Any] | None:
    """Return the meaning of a word that names a model of this machine, as in "with NAME" and "nano or NAME"."""
    name = run[0].text.lower()
    follows = not before or before[-1].key in (*BEFORE_MODELS, "vs", "versus", "and", "or", ",", "/")
    return (TokenKind.VALUE, ("model", name)) if len(run) == 1 and follows and has_name(name) else None


def is_plural(token: Token) -> bool:
    """Return whether a setting has a name that is not in the table, but only its singular is."""
    return token.kind is TokenKind.SETTING and token.key not in _names()


@cache
def _names() -> frozenset[str]:
    """Return the names of settings as they stand in the table, by their keys."""
    return frozenset(key_of(phrase) for spec in SPECS.values() for phrase in (spec.name, spec.title, *spec.aliases))


@cache
def _lexicon() -> Mapping[str, tuple[str, Any]]:
    """Return every phrase that a topic may use, by its key."""
    found: dict[str, tuple[str, Any]] = {key_of(word): (TokenKind.HARMLESS, None) for word in HARMLESS}
    found |= {key_of(phrase): (TokenKind.ASKED, asked) for phrase, asked in ASKED.items()}
    found |= {key_of(phrase): (TokenKind.PART, part) for phrase, part in PARTS.items()}
    found |= {key_of(phrase): (TokenKind.OPTIMIZES, _sought_by(phrase)) for phrase in OPTIMIZES}
    found |= {key_of(phrase): (TokenKind.WORD, None) for phrase in SEEKS}
    found |= {key_of(phrase): (TokenKind.EQUAL, unit) for phrase, unit in EQUAL.items()}
    found |= {key_of(phrase): (TokenKind.COUNT, name) for phrase, name in COUNTED.items()}
    found |= {key_of(phrase): (TokenKind.ENVIRONMENT, name) for phrase, name in NAMES_OF_ENVIRONMENTS.items()}
    found |= {key_of(name): (_VERB, name) for name in VERBS_OF_ENVIRONMENTS}
    found |= dict.fromkeys(NUMBERS, (TokenKind.NUMBER, None))
    for spec in SPECS.values():
        for phrase in (spec.name, spec.title, *spec.aliases):
            for form in (phrase, f"{phrase}s", f"{phrase}es"):
                found[key_of(form)] = (TokenKind.SETTING, spec.name)
        for phrase, value in spec.values.items():
            if phrase not in ("on", "off"):
                found[key_of(phrase)] = (TokenKind.VALUE, (spec.name, value))
    return found


def _sought_by(phrase: str) -> ArmPart | None:
    return next((part for word, part in PARTS.items() if phrase.endswith(f" {word}")), None)


@cache
def _longest() -> int:
    return max(key.count(" ") + 1 for key in _lexicon())
