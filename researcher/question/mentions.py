"""The words of a topic as tokens, and the mentions of settings among them, with their values."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from types import MappingProxyType
from typing import Any

from researcher.charter import Asked
from researcher.errors import TopicInvalid
from researcher.question.factors import SPECS, FactorSpec
from researcher.question.flags import read_value, value_as_text
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


_STUDY_DEFAULTS: Mapping[str, Any] = MappingProxyType({"lr": 1e-3, "mini_batch_num": 4, "total_steps": 30})
"""The defaults of a study that differ from those of a job."""
_ARTICLES = frozenset({"a", "an", "the"})
_GIVEN = frozenset({"at", "with", "using", "under"})
_OFF = frozenset({"without", "no"})
_LINKS = frozenset({"of", "is", "=", ":"})
_BEFORE_BASELINE = frozenset({"than", "beat", "beats", "outperform", "outperforms", "instead of", "as good as"})
_JOINTS = frozenset({"or", "and", "vs", "versus", "against", ",", "learn", "learns"}) | _BEFORE_BASELINE
_LETTERS = MappingProxyType({TokenKind.SETTING: "s", TokenKind.COUNT: "c", TokenKind.WORD: "w"})

_LIST = r"[nv](?:[jt]*[nv])*"
"""A list of values, as letters of tokens (_letters): numbers and words, with joints and articles between them."""
_ALONE = rf"({_LIST})(?![scw])"
"""A list whose last number does not belong to a name, a counted thing or an unknown word behind it."""
_AFTER_NAME = re.compile(rf"sl*{_ALONE}")
_BEFORE_NAME = re.compile(r"(n[nj]*)[sc](?!n)")


@dataclass(frozen=True, slots=True)
class Mention:
    """A setting that the topic names, from token `start` to before token `end`, with its values.

    `is_given` says that "at" or "with" precedes it. `is_without` says that "without" or "no" precedes it. `is_with`
    says that neither of these precedes at least one mention. `compared_with` is the value after "than".
    """

    name: str
    start: int
    end: int
    values: tuple[Any, ...] = ()
    is_given: bool = False
    is_without: bool = False
    is_with: bool = True
    compared_with: Any = None

    @classmethod
    def joined(cls, run: Sequence[Mention]) -> Mention:
        """Return several adjacent mentions of one setting as one."""
        return cls(
            run[0].name,
            run[0].start,
            run[-1].end,
            tuple(value for mention in run for value in mention.values),
            run[0].is_given,
            any(mention.is_without for mention in run),
            any(mention.is_with for mention in run),
            next((mention.compared_with for mention in run if mention.compared_with is not None), None),
        )

    @property
    def spec(self) -> FactorSpec:
        return SPECS[self.name]

    @property
    def text(self) -> str:
        return " ".join([self.spec.title, *map(value_as_text, self.values)])

    @property
    def usual(self) -> Any:
        """The value in a study whose topic does not mention the setting; None if there is none."""
        return _STUDY_DEFAULTS.get(self.name, self.spec.default)

    @property
    def has_levels(self) -> bool:
        """True if the topic itself gives at least two levels."""
        return len(self.values) > 1 or (not self.values and self.is_without and self.is_with)

    @property
    def on_and_off(self) -> tuple[Any, ...]:
        off = self.spec.off
        present = next((value for value in (self.usual, *self.spec.usual) if value not in (None, off)), None)
        if off is None or present is None:
            return ()
        return (off, present) if off == self.usual else (present, off)

    def bare_levels(self, asked: Asked, *, is_alone: bool) -> tuple[Any, ...]:
        """Return the levels of a setting without values: those that the question implies, or the usual ones."""
        if asked is Asked.DIVERGES:
            return self.spec.ladder
        if asked is Asked.NEEDED or self.is_without:
            return self.on_and_off if is_alone else ()
        return self.spec.usual


def find_mentions(tokens: Sequence[Token], *, near_unknown: bool = False) -> tuple[Mention, ...]:
    """Return the mentions in order, and give numbers that are their values the kind READ.

    Values belong to a setting in three cases. They directly follow its name ("lr 1e-3 or 3e-3"). Its name directly
    follows them ("8 or 16 episodes per task"). Or the topic names one setting and has one list of numbers elsewhere.
    A setting beside an unknown word may be something else, as in "LoRA dropout". Such a mention counts only with
    `near_unknown`.
    """
    found: list[Mention] = []
    index = 0
    while index < len(tokens):
        mention = _mention_at(tokens, index)
        index += 1
        if mention is not None and (near_unknown or not _is_compound(tokens, mention)):
            found.append(mention)
            index = mention.end
    if len(found) == 1 and not found[0].values:
        return (_with_values_elsewhere(tokens, found[0]),)
    return tuple(found)


def _mention_at(tokens: Sequence[Token], index: int) -> Mention | None:
    token = tokens[index]
    match token.kind:
        case TokenKind.SETTING:
            name = str(token.meaning)
            named = _AFTER_NAME.match(_letters(tokens, name), index)
            return _read(tokens, name, index, named.end() if named else index + 1)
        case TokenKind.VALUE:
            name = str(token.meaning[0])
            letters = _letters(tokens, name)
            end = index + len(re.match(_LIST, letters[index:])[0])  # pyright: ignore[reportOptionalSubscript]
            # In "a cosine or a constant schedule", the name follows its values.
            end += end < len(tokens) and tokens[end].kind is TokenKind.SETTING and tokens[end].meaning == name
            return _read(tokens, name, index, end)
        case TokenKind.NUMBER:
            return _mention_behind(tokens, index)
        case _:
            return None


def _mention_behind(tokens: Sequence[Token], index: int) -> Mention | None:
    """Return a setting whose name directly follows a list: "8 or 16 episodes per task", "20 or 40 steps"."""
    letters = _letters(tokens)
    named = _BEFORE_NAME.match(letters, index)
    if named is None or (index and letters[index - 1] in "sw"):
        return None
    last = tokens[named.end() - 1]
    if last.kind is TokenKind.COUNT and (last.meaning != "steps" or len(named[1]) == 1):
        return None
    name = str(last.meaning) if last.kind is TokenKind.SETTING else "total_steps"
    is_list = re.fullmatch(_LIST, _letters(tokens, name)[index : named.end(1)])
    return _read(tokens, name, index, named.end()) if is_list else None


def _letters(tokens: Sequence[Token], name: str | None = None) -> str:
    """Return one letter for each token: what it may be in a mention of the setting, or of any setting.

    n: a number; v: another value; s: the name of a setting; c: a counted thing; j: a joint of a list; t: an article;
    l: a link between a name and its values; w: an unknown word; a full stop: anything else.
    """
    return "".join(_letter(token, name) for token in tokens)


def _letter(token: Token, name: str | None) -> str:
    is_relation = token.kind is TokenKind.ASKED and token.meaning in (Asked.BETTER, Asked.SOONER, Asked.EQUAL)
    if token.kind is TokenKind.NUMBER:
        return "n" if name is None or _value_of(token, name) is not None else "."
    if token.kind is TokenKind.VALUE:
        return "v" if token.meaning[0] == name else "."
    if is_relation or token.key in _JOINTS:
        return "j"
    if token.key in _ARTICLES:
        return "t"
    if token.key in _LINKS:
        return "l"
    return _LETTERS.get(token.kind, ".")


def _read(tokens: Sequence[Token], name: str, start: int, end: int) -> Mention:
    """Return the mention from `start` to before `end`, and mark its numbers as read."""
    values, baseline = _values_in(tokens[start:end], name)
    for token in tokens[start:end]:
        if token.kind in (TokenKind.NUMBER, TokenKind.COUNT):
            token.kind = TokenKind.READ
    leading = _leading(tokens, start)
    if baseline is None and leading & _BEFORE_BASELINE and len(values) == 1:
        baseline = values[0]
    is_without = bool(leading & _OFF)
    is_with = not is_without or {"with", "without"} <= leading
    return Mention(name, start, end, values, bool(leading & _GIVEN) and not is_without, is_without, is_with, baseline)


def _values_in(tokens: Sequence[Token], name: str) -> tuple[tuple[Any, ...], Any]:
    """Return the values among the tokens, and the one after "than"."""
    values: list[Any] = []
    baseline: Any = None
    is_baseline = False
    for token in tokens:
        value = _value_of(token, name)
        if value is None:
            is_baseline |= bool(values) and token.key in _BEFORE_BASELINE
            continue
        baseline = value if is_baseline and baseline is None else baseline
        values.append(value)
        is_baseline = False
    return tuple(values), baseline


def _leading(tokens: Sequence[Token], start: int) -> set[str]:
    """Return the words that introduce a mention, without articles: "with", "with or without", "better than"."""
    before = [token.key for token in tokens[:start]]
    while before and before[-1] in _ARTICLES:
        before.pop()
    if before[-3:] in (["with", "or", "without"], ["with", "and", "without"]):
        return {"with", "without"}
    return {*before[-1:]}


def _value_of(token: Token, name: str) -> Any:
    """Return the token as a value of a setting; None if it is not one."""
    if token.kind is TokenKind.VALUE:
        return token.meaning[1] if token.meaning[0] == name else None
    if token.kind is not TokenKind.NUMBER or not SPECS[name].is_numeric:
        return None
    try:
        return read_value(name, token.text.replace("−", "-").replace("10^", "1e"), "topic")
    except TopicInvalid:
        return None


def _is_compound(tokens: Sequence[Token], mention: Mention) -> bool:
    beside = [tokens[place] for place in (mention.start - 1, mention.end) if 0 <= place < len(tokens)]
    return any(token.kind is TokenKind.WORD for token in beside)


def _with_values_elsewhere(tokens: Sequence[Token], mention: Mention) -> Mention:
    """Return the only mention of a topic, with its values if all numbers of the topic are one separate list of them."""
    letters = _letters(tokens)
    first, last = letters.find("n"), letters.rfind("n")
    listed = re.compile(_ALONE).match(_letters(tokens, mention.name), first) if first >= 0 else None
    if listed is None or last >= listed.end() or letters[first - 1 : first] == "w":
        return mention
    values, _ = _values_in(tokens[first : listed.end()], mention.name)
    if len(values) < 2:
        return mention
    elsewhere = _read(tokens, mention.name, first, listed.end())
    return replace(mention, values=elsewhere.values, compared_with=elsewhere.compared_with)
