"""The mentions of settings among the tokens of a topic, with their values."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from researcher.charter import Asked
from researcher.errors import TopicInvalid
from researcher.question.factors import RESPONSE_LENGTH, SPECS, FactorSpec
from researcher.question.flags import read_value, value_as_text
from researcher.question.tokens import Token, TokenKind, is_plural
from researcher.question.usual_job import BASE_JOB, DEFAULT_STEPS
from researcher.question.words import SWAPPED

_STUDY_DEFAULTS: Mapping[str, Any] = MappingProxyType({**BASE_JOB, "total_steps": DEFAULT_STEPS})
_ARTICLES = frozenset({"a", "an", "the"})
_GIVEN = frozenset({"at", "with", "using", "under"})
_OFF = frozenset({"without", "no"})
_LINKS = frozenset({"of", "is", "=", ":", "in", "(", "[", "{"})
_ARROWS = frozenset({"->", "-->", "→"})
_BEFORE_BASELINE = frozenset({"than", "beat", "beats", "outperform", "outperforms", "instead of", "as good as"})
_JOINTS = frozenset({"or", "and", "vs", "versus", "against", ",", "learn", "learns"}) | _BEFORE_BASELINE | SWAPPED
_LOOSE_JOINTS = _ARROWS | {"to", "with", "/", ",", "-", "–", "..", "worse", "slower", "|", "&"}
"""What stands between levels or means something else; a proposal after a refusal takes the numbers to be levels."""
_SIGNS = frozenset({",", "/", "-", "–", ".."})
_IN_TOKENS = frozenset({RESPONSE_LENGTH, "max_model_len"})
"""The settings of which the word "tokens" may follow a value."""
_LETTERS = MappingProxyType({TokenKind.SETTING: "s", TokenKind.COUNT: "c", TokenKind.WORD: "w"})

_LIST = r"[nv]u?(?:[jma]*t?[nv]u?)*"
"""A list of values, as letters of tokens (_letters): numbers and words, with joints and articles between them."""
_ALONE = rf"({_LIST})(?![scw])"
"""A list whose last number does not belong to a name, a counted thing or an unknown word behind it."""
_AFTER_NAME = re.compile(rf"[sc]l*(f[nv]u?o[nv]u?|{_LIST})(?![scwo])")
_AFTER_NAME_LOOSELY = re.compile(r"s[lf]*([nv]u?(?:[jao]+t?[nv]u?|m[jmao]*t?[nv]u?(?!w))*)(?![sc])")
"""The same for a proposal: a word behind the list may be anything, unless a comma precedes its number."""
_BEFORE_NAME = re.compile(r"(n[nujma]*)[sc](?!n)")


class _Sign(StrEnum):
    """The word before a value of a mention."""

    NONE = "none"
    THAN = "than"
    SWAPPED = "worse than"
    ARROW = "to"


@dataclass(frozen=True, slots=True)
class Mention:
    """A setting that the topic names, from token `start` to before token `end`, with its values.

    `signs` say what precedes each value. `is_given` says that "at" or "with" precedes the mention. `is_without` says
    that "without" or "no" precedes it. `is_with` says that neither of these precedes at least one mention.
    `is_named_first` says that the name of the setting precedes its values.
    """

    name: str
    start: int
    end: int
    values: tuple[Any, ...] = ()
    signs: tuple[_Sign, ...] = ()
    is_given: bool = False
    is_without: bool = False
    is_with: bool = True
    is_named_first: bool = False

    @classmethod
    def joined(cls, run: Sequence[Mention]) -> Mention:
        """Return several adjacent mentions of one setting as one."""
        return replace(
            run[0],
            end=run[-1].end,
            values=tuple(value for mention in run for value in mention.values),
            signs=tuple(sign for mention in run for sign in mention.signs),
            is_without=any(mention.is_without for mention in run),
            is_with=any(mention.is_with for mention in run),
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
    def is_off(self) -> bool:
        """True if the topic says that the setting is off, and not that it may be on."""
        return self.is_without and not self.is_with

    @property
    def compared_with(self) -> Any:
        """The value of the baseline: after "than", or before "worse than" and an arrow; None if there is none."""
        for index, sign in enumerate(self.signs):
            if sign is _Sign.THAN:
                return self.values[index]
            if sign is not _Sign.NONE and index:
                return self.values[0]
        return None

    @property
    def is_clear(self) -> bool:
        """True if the signs say one thing: one value is behind "than", two are beside "worse than"."""
        *others, last = self.signs or (_Sign.NONE,)
        if set(others) <= {_Sign.NONE} and last in (_Sign.NONE, _Sign.THAN):
            return True
        if last is _Sign.SWAPPED:
            return len(self.values) == 2 and others == [_Sign.NONE]
        return last is _Sign.ARROW and others[:1] == [_Sign.NONE] and set(others[1:]) <= {_Sign.ARROW}

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


def find_mentions(tokens: Sequence[Token], *, is_loose: bool = False) -> tuple[Mention, ...]:
    """Return the mentions in order, and give their tokens the kind READ.

    Values belong to a setting in three cases. They directly follow its name ("lr 1e-3 or 3e-3"). Its name directly
    follows them ("8 or 16 episodes per task"). Or the topic names one setting and has one list of numbers elsewhere.
    A setting beside an unknown word may be something else, as in "LoRA dropout". Such a mention counts only if
    `is_loose`, which is for proposals: there, any sign may join levels.
    """
    if is_loose:
        _loosen(tokens)
    found: list[Mention] = []
    index = 0
    while index < len(tokens):
        mention = _mention_at(tokens, index, is_loose)
        index += 1
        if mention is not None and (is_loose or not _is_compound(tokens, mention)):
            found.append(mention)
            index = mention.end
    bare = [mention for mention in found if not mention.values and not mention.is_off]
    if len(bare) == 1:
        found[found.index(bare[0])] = _with_values_elsewhere(tokens, bare[0])
    return tuple(found)


def _loosen(tokens: Sequence[Token]) -> None:
    """Let more words and signs join levels."""
    for index, token in enumerate(tokens):
        is_joint = token.kind in (TokenKind.WORD, TokenKind.HARMLESS) and token.text.lower() in _LOOSE_JOINTS
        if is_joint and token.meaning is None:
            token.meaning = "all"
        if token.meaning == "grouped" and all(
            other.kind is not TokenKind.COUNT for other in tokens[index + 2 : index + 3]
        ):
            token.meaning = "whole"


def _mention_at(tokens: Sequence[Token], index: int, is_loose: bool) -> Mention | None:
    token = tokens[index]
    match token.kind:
        case TokenKind.SETTING:
            name = str(token.meaning)
            letters = _letters(tokens, name)
            if is_plural(token) and not is_loose:
                # "Batch sizes from 8 to 64" are a range.
                letters = letters.replace("f", "w")
            named = (_AFTER_NAME_LOOSELY if is_loose else _AFTER_NAME).match(letters, index)
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
        case TokenKind.COUNT if token.meaning == "steps":
            named = _AFTER_NAME.match(_letters(tokens, "total_steps"), index)
            is_list = (
                named is not None
                and len(named[1]) > 1
                and (not index or tokens[index - 1].kind is not TokenKind.NUMBER)
            )
            return _read(tokens, "total_steps", index, named.end()) if named and is_list else None
        case _:
            return None


def _mention_behind(tokens: Sequence[Token], index: int) -> Mention | None:
    """Return a setting whose name directly follows a list: "8 or 16 episodes per task", "20 or 40 steps"."""
    letters = _letters(tokens)
    named = _BEFORE_NAME.match(letters, index)
    if named is None or (index and letters[index - 1] in "swo"):
        return None
    last, is_one = tokens[named.end() - 1], len(named[1]) == 1
    if last.kind is TokenKind.COUNT and (last.meaning != "steps" or is_one):
        return None
    if is_one and is_plural(last):
        # "Two learning rates" are two levels that the topic does not give.
        return None
    name = str(last.meaning) if last.kind is TokenKind.SETTING else "total_steps"
    is_list = re.fullmatch(_LIST, _letters(tokens, name)[index : named.end(1)])
    return _read(tokens, name, index, named.end()) if is_list else None


def _letters(tokens: Sequence[Token], name: str | None = None) -> str:
    """Return one letter for each token: what it may be in a mention of the setting, or of any setting.

    Values: `n` is a number and `v` another value. Names: `s` is a setting and `c` a counted thing. Signs: `j` joins a
    list, `m` is a comma and `a` an arrow. Words: `f` is "from", `o` is "to", `t` an article and `u` "tokens". `l` links
    a name with its values. `w` is an unknown word, and a full stop is anything else.
    """
    letters = [_letter(token, name) for token in tokens]
    for index, token in enumerate(tokens):
        if letters[index] == "w" and token.text in _SIGNS:
            # The numbers beside it are parts of one value.
            letters[index - 1 : index + 2] = "w" * len(letters[index - 1 : index + 2])
    return "".join(letters)


def _letter(token: Token, name: str | None) -> str:
    is_relation = token.kind is TokenKind.ASKED and token.meaning in (Asked.BETTER, Asked.SOONER, Asked.EQUAL)
    is_sign = token.meaning == "all" or (token.meaning == "whole" and (name is None or SPECS[name].is_whole))
    key = token.key
    if token.kind is TokenKind.NUMBER:
        return "n" if name is None or _value_of(token, name) is not None else "."
    if token.kind is TokenKind.VALUE:
        return "v" if token.meaning[0] == name else "."
    if token.kind is TokenKind.READ:
        return "."
    if key == "," and (token.kind is TokenKind.STOP or is_sign):
        return "m"
    if is_relation or is_sign or (key in _JOINTS and token.kind is not TokenKind.WORD):
        return "j"
    if token.text in _ARROWS:
        return "a"
    if key == "tokens" and name in _IN_TOKENS:
        return "u"
    words = {**dict.fromkeys(_ARTICLES, "t"), **dict.fromkeys(_LINKS, "l"), "from": "f", "to": "o"}
    return words.get(key) or _LETTERS.get(token.kind, ".")


def _read(tokens: Sequence[Token], name: str, start: int, end: int) -> Mention:
    """Return the mention from `start` to before `end`, and mark its numbers and signs as read."""
    leading = _leading(tokens, start)
    sign = _Sign.NONE
    if leading & (_BEFORE_BASELINE | SWAPPED):
        sign = _Sign.SWAPPED if leading & SWAPPED else _Sign.THAN
    elif start and tokens[start - 1].text in _ARROWS:
        sign = _Sign.ARROW
        tokens[start - 1].kind = TokenKind.READ
    values, signs = _values_in(tokens[start:end], name, sign)
    is_named_first = tokens[start].kind in (TokenKind.SETTING, TokenKind.COUNT)
    for token in tokens[start:end]:
        if token.kind in (TokenKind.NUMBER, TokenKind.COUNT, TokenKind.WORD):
            token.kind = TokenKind.READ
    is_without = bool(leading & _OFF)
    is_with = not is_without or {"with", "without"} <= leading
    is_given = bool(leading & _GIVEN) and not is_without
    return Mention(name, start, end, values, signs, is_given, is_without, is_with, is_named_first)


def _values_in(tokens: Sequence[Token], name: str, sign: _Sign) -> tuple[tuple[Any, ...], tuple[_Sign, ...]]:
    """Return the values among the tokens, and the signs before them, of which `sign` is the first."""
    values: list[Any] = []
    signs: list[_Sign] = []
    for token in tokens:
        value = _value_of(token, name)
        if value is not None:
            values.append(value)
            signs.append(sign)
            sign = _Sign.NONE
        elif values and token.key in _BEFORE_BASELINE:
            sign = _Sign.THAN
        elif values and token.key in SWAPPED:
            sign = _Sign.SWAPPED
        elif values and (token.text in _ARROWS or token.key == "to"):
            sign = _Sign.ARROW
    return tuple(values), tuple(signs)


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
    return number_of(token, name) if token.kind is TokenKind.NUMBER else None


def number_of(token: Token, name: str) -> Any:
    """Return a number of the topic as a value of a setting; None if the setting cannot have it."""
    if not SPECS[name].is_numeric:
        return None
    try:
        return read_value(name, token.number, "topic")
    except TopicInvalid:
        return None


def _is_compound(tokens: Sequence[Token], mention: Mention) -> bool:
    beside = [tokens[place] for place in (mention.start - 1, mention.end) if 0 <= place < len(tokens)]
    return any(token.kind is TokenKind.WORD for token in beside)


def _with_values_elsewhere(tokens: Sequence[Token], mention: Mention) -> Mention:
    """Return the only mention without values, with all numbers that no other one has if they are one separate list."""
    letters = _letters(tokens)
    first, last = letters.find("n"), letters.rfind("n")
    listed = re.compile(_ALONE).match(_letters(tokens, mention.name), first) if first >= 0 else None
    if listed is None or last >= listed.end() or letters[first - 1 : first] == "w":
        return mention
    values, _ = _values_in(tokens[first : listed.end()], mention.name, _Sign.NONE)
    if len(values) < 2:
        return mention
    elsewhere = _read(tokens, mention.name, first, listed.end())
    return replace(mention, values=elsewhere.values, signs=elsewhere.signs)
