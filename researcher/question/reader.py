"""The small form of topic that is read without a language model: settings, values, an environment and question words.

Place in the flow: the settings of a study are completed from what is read here, unless flags name the factors. Every
word has to be known; one that is not makes the topic unread, and nothing is ever taken for a remark. docs/topics.md
describes the form. This module knows nothing of arms, servers or scores.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from researcher.errors import TopicInvalid
from researcher.question.factors import SPECS, FactorSpec
from researcher.question.flags import make_factor, read_value, value_as_text
from researcher.question.words import (
    ASKED,
    COUNTED,
    EQUAL,
    HARMLESS,
    JOINTS,
    LINKS,
    NAMES_OF_ENVIRONMENTS,
    NUMBERS,
    OPTIMIZES,
    VERBS_OF_ENVIRONMENTS,
)
from researcher.types import Asked, ComparedAt, Factor, StudyKind
from swarm.environments.registry import LIBRARIES

LONGEST_TOPIC = 4000
"""Characters; a topic is a question, not a document."""

_NUMBER = r"10\^-?\d+|[-−]?(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][-−+]?\d+)?"
_AMBIGUOUS = r"(?<![\w.])\d+(?:,\d+)+(?![\w.]*[eE.]\d)"
"""8,16 may be two numbers, and in some languages one."""
_TOKEN = re.compile(
    rf"(?P<reference>(?:{'|'.join(LIBRARIES)}):[\w./@-]*\w(?:\?[\w=&.,-]*\w)?)"
    r"|(?P<path>(?:~|\.{1,2})?/[\w./@-]*\w(?:\?[\w=&.,-]*\w)?)"
    rf"|(?P<ambiguous>{_AMBIGUOUS})"
    rf"|(?P<number>(?<![\w.])(?:{_NUMBER})(?![\w]|\.\d|%))"
    r"|(?P<word>[^\W_][^\s,;:!?()\"“”]*)",
)
_VERB = "environment verb"
_BASELINE = frozenset({"than", "beat", "beats", "from", "over", "to", "against"})


@dataclass(frozen=True, slots=True)
class Reading:
    """What a topic says. `unread` are its words that nothing stands for, as written; `counts` are numbers of seeds,
    steps, runs, hours, GPUs and held-out episodes."""

    text: str
    kind: StudyKind = StudyKind.COMPARE
    asked: Asked = Asked.EFFECT
    factors: tuple[Factor, ...] = ()
    fixed: Mapping[str, Any] = field(default_factory=dict[str, Any])
    environment: str | None = None
    compared_at: ComparedAt | None = None
    counts: Mapping[str, float] = field(default_factory=dict[str, float])
    unread: tuple[str, ...] = ()
    names: frozenset[str] = frozenset()


def read_topic(text: str, *, is_strict: bool = True, has_environment: bool = False) -> Reading:
    """Read a topic. Raises TopicInvalid for an empty or overlong one.

    A strict reading leaves out what may mean something else: a setting beside an unknown word, and one value of a
    setting beside other settings. One that is not strict is good for a proposal alone. Where a flag names the
    environment (`has_environment`), the topic may call it what it likes: "... on our support tickets?".
    """
    text = " ".join(text.split())
    if not text:
        raise TopicInvalid("the topic is empty: say what to study, such as 'Does group size matter for word reversal?'")
    if len(text) > LONGEST_TOPIC:
        raise TopicInvalid(f"the topic has {len(text)} characters, at most {LONGEST_TOPIC} are read: shorten it")
    return _Reader(text, is_strict, has_environment).read()


@dataclass(slots=True)
class _Token:
    """A word or number of the topic, or several words that stand for one thing. `meaning` is None until it is read."""

    text: str
    kind: str
    meaning: Any = None


@dataclass(slots=True)
class _Mention:
    """A setting that the topic names, with the values that belong to it. `is_given` where "at" or "with" stands before
    it, `is_without` where "without" or "no" does, `compared_with` is the value after "than"."""

    spec: FactorSpec
    values: list[Any] = field(default_factory=list[Any])
    is_given: bool = False
    is_without: bool = False
    compared_with: Any = None


class _Reader:
    def __init__(self, text: str, is_strict: bool, has_environment: bool) -> None:
        self._text = text
        self._is_strict = is_strict
        self._has_environment = has_environment
        self._unread: list[str] = []
        self._mentions: dict[str, _Mention] = {}
        self._tokens = _merge(_tokenize(text))

    def read(self) -> Reading:
        counts = self._read_counts()
        environment = self._read_environment()
        if self._has_environment:
            self._read_own_name()
        asked, kind = self._read_question()
        compared_at = next((token.meaning for token in self._tokens if token.kind == "equal"), None)
        self._read_settings()
        self._read_numbers()
        factors, fixed = self._sort_out(asked)
        self._unread += _unread_parts(self._tokens)
        if kind is StudyKind.COMPARE and not factors and not self._unread:
            self._unread.append(self._text)
        return Reading(
            text=self._text,
            kind=kind,
            asked=asked,
            factors=factors,
            fixed=fixed,
            environment=environment,
            compared_at=compared_at,
            counts=counts,
            unread=tuple(dict.fromkeys(self._unread)),
            names=frozenset(self._mentions),
        )

    def _read_counts(self) -> dict[str, float]:
        """Numbers directly before what they count."""
        counts: dict[str, float] = {}
        for index, token in enumerate(self._tokens):
            if token.kind != "count":
                continue
            before = self._tokens[index - 1] if index else None
            if before is None or before.kind != "number" or _is_listed(self._tokens, index - 1):
                is_factor = token.meaning == "steps" and before is not None and before.kind == "number"
                token.kind, token.meaning = ("setting", "total_steps") if is_factor else ("word", None)
                continue
            before.kind = "read"
            counts[token.meaning] = _number(before.text)
        return counts

    def _read_environment(self) -> str | None:
        names = [token for token in self._tokens if token.kind in ("reference", "environment", "path")]
        for token in names:
            if token.kind == "path" and Path(token.text.partition("?")[0]).expanduser().exists():
                token.kind, token.meaning = "environment", token.text
        known = list(dict.fromkeys(token.meaning or token.text for token in names if token.kind != "path"))
        self._unread += [str(name) for name in known[1:]]
        return known[0] if known else None

    def _read_own_name(self) -> None:
        """Take the words after the last "on" or "for" of a topic for the name of the environment."""
        place = len(self._tokens)
        while place and self._tokens[place - 1].kind == "word":
            place -= 1
        leading = [_key(token.text) for token in self._tokens[max(0, place - 2) : place]]
        if {"on", "for"} & set(leading):
            for token in self._tokens[place:]:
                token.kind = "read"

    def _read_question(self) -> tuple[Asked, StudyKind]:
        found = [token.meaning for token in self._tokens if token.kind == "asked"]
        # "Which matters more, and which is best?" is answered by the more particular of both.
        asked = max(found, key=list(Asked).index, default=Asked.EFFECT)
        is_search = any(token.kind == "optimizes" for token in self._tokens)
        return (Asked.BEST, StudyKind.OPTIMIZE) if is_search else (asked, StudyKind.COMPARE)

    def _read_settings(self) -> None:
        if self._is_strict:
            self._take_out_compounds()
        for index, token in enumerate(self._tokens):
            if token.kind not in ("setting", "value"):
                continue
            name, value = token.meaning if token.kind == "value" else (token.meaning, None)
            mention = self._mentions.setdefault(name, _Mention(SPECS[name]))
            leading = _words_before(self._tokens, index)
            mention.is_given |= bool({"at", "with", "using", "under", "given"} & leading)
            mention.is_without |= bool({"without", "no"} & leading)
            if token.kind == "value":
                self._add(mention, value, is_baseline=bool(_BASELINE & leading))

    def _take_out_compounds(self) -> None:
        """A setting beside an unknown word is another thing: "LoRA dropout" is no LoRA rank."""
        known = list(self._tokens)
        for index, token in enumerate(known):
            beside = [known[place] for place in (index - 1, index + 1) if 0 <= place < len(known)]
            if token.kind in ("setting", "value") and any(item.kind == "word" for item in beside):
                token.kind = "word"

    def _read_numbers(self) -> None:
        """A list of numbers belongs to the setting directly before it, directly after it, or the only one there is."""
        for start, end in _lists(self._tokens):
            before, after = _setting_before(self._tokens, start), _setting_after(self._tokens, end)
            is_clear = len(self._mentions) == 1 and all(token.kind != "word" for token in self._tokens)
            only = next(iter(self._mentions)) if is_clear else None
            owner = before or after or only
            if owner is None or not SPECS[owner].is_numeric:
                continue
            mention = self._mentions[owner]
            is_baseline = bool(_BASELINE & _words_before(self._tokens, start))
            for token in self._tokens[start:end]:
                if token.kind != "number":
                    continue
                try:
                    value = read_value(owner, _plain(token.text), "topic")
                except TopicInvalid:
                    continue
                token.kind = "read"
                self._add(mention, value, is_baseline=is_baseline)
                is_baseline = False

    def _add(self, mention: _Mention, value: Any, *, is_baseline: bool) -> None:
        if value not in mention.values:
            mention.values.append(value)
        if is_baseline:
            mention.compared_with = value

    def _sort_out(self, asked: Asked) -> tuple[tuple[Factor, ...], dict[str, Any]]:
        """Which settings are varied and which are fixed; what is neither for certain is unread."""
        factors: list[Factor] = []
        fixed: dict[str, Any] = {}
        is_alone = len(self._mentions) == 1
        for name, mention in self._mentions.items():
            spec, values = mention.spec, mention.values
            if len(values) > 1:
                factor = make_factor(spec, values)
            elif values and not is_alone and (mention.is_given or not self._is_strict):
                fixed[name] = values[0]
                continue
            elif values and is_alone and (usual := _usual(spec)) is not None and values[0] != usual:
                factor = make_factor(spec, (usual, values[0]))
            elif (
                not values
                and (levels := _levels(mention, asked))
                and (is_alone or mention.is_without or not mention.is_given)
            ):
                factor = make_factor(spec, levels, explicit=mention.is_without or asked is Asked.NEEDED)
            else:
                if not self._is_strict and values and len(spec.usual) > 1:
                    factors.append(make_factor(spec, (values[0], *spec.usual)))
                    continue
                self._unread.append(" ".join([spec.title, *map(value_as_text, values)]))
                continue
            factors.append(_with_baseline(factor, mention))
        return tuple(factors), fixed


def _with_baseline(factor: Factor, mention: _Mention) -> Factor:
    level = next((item for item in factor.levels if item.factors[factor.name] == mention.compared_with), None)
    if level is None or mention.compared_with is None:
        return factor
    return Factor(factor.name, factor.levels, factor.explicit, factor.needs, level.name)


def _levels(mention: _Mention, asked: Asked) -> tuple[Any, ...]:
    """The levels of a setting without values: those that the question is about, or the usual ones."""
    spec = mention.spec
    if asked is Asked.DIVERGES:
        return spec.ladder
    if asked is Asked.NEEDED or mention.is_without:
        present = next(
            (value for value in (_usual(spec), *spec.usual) if value is not None and value != spec.off), None
        )
        if spec.off is None or present is None:
            return ()
        return (spec.off, present) if spec.off == _usual(spec) else (present, spec.off)
    return spec.usual


def _usual(spec: FactorSpec) -> Any:
    """The value of a study whose topic says nothing of the setting; None if there is none."""
    if spec.name in STUDY_DEFAULTS:
        return STUDY_DEFAULTS[spec.name]
    return spec.default


STUDY_DEFAULTS: Mapping[str, Any] = {"lr": 1e-3, "mini_batch_num": 4, "total_steps": 30}
"""What a study sets that a job leaves open."""


def _tokenize(text: str) -> list[_Token]:
    found: list[_Token] = []
    for match in _TOKEN.finditer(text):
        kind = "word" if match.lastgroup == "ambiguous" else str(match.lastgroup)
        word = match.group().rstrip(".'’").removesuffix("'s") if kind == "word" else match.group()
        found.append(_Token(word, kind))
    return found


def _merge(tokens: Sequence[_Token]) -> list[_Token]:
    """The tokens with the longest run of words that stands for something as one of them."""
    merged: list[_Token] = []
    position = 0
    while position < len(tokens):
        token = tokens[position]
        if token.kind != "word":
            merged.append(token)
            position += 1
            continue
        for length in range(_longest(), 0, -1):
            run = tokens[position : position + length]
            if len(run) < length or any(item.kind not in ("word",) for item in run):
                continue
            words = " ".join(item.text for item in run)
            if (known := _lexicon().get(_key(words))) is not None and _stands_here(known, merged):
                kind, meaning = known
                merged.append(_Token(words, "environment" if kind == _VERB else kind, meaning))
                position += length
                break
        else:
            merged.append(token)
            position += 1
    return merged


def _stands_here(known: tuple[str, Any], before: Sequence[_Token]) -> bool:
    """Whether a word may stand for this here: "add" is an environment after "on" and a verb elsewhere."""
    if known[0] != _VERB:
        return True
    return bool(before) and _key(before[-1].text) in ("on", "for", "train", "trains", "training", "environment")


@cache
def _lexicon() -> Mapping[str, tuple[str, Any]]:
    """Every phrase that a topic may use, by its key."""
    found: dict[str, tuple[str, Any]] = {}
    for word in (*HARMLESS, *LINKS, *JOINTS):
        found[_key(word)] = ("harmless", None)
    found |= {_key(word): ("number word", value) for word, value in NUMBERS.items()}
    found |= {_key(phrase): ("asked", asked) for phrase, asked in ASKED.items()}
    found |= {_key(phrase): ("optimizes", None) for phrase in OPTIMIZES}
    found |= {_key(phrase): ("equal", unit) for phrase, unit in EQUAL.items()}
    found |= {_key(phrase): ("count", name) for phrase, name in COUNTED.items()}
    found |= {_key(phrase): ("environment", name) for phrase, name in NAMES_OF_ENVIRONMENTS.items()}
    found |= {_key(name): (_VERB, name) for name in VERBS_OF_ENVIRONMENTS}
    for spec in SPECS.values():
        for phrase in (spec.name, spec.name.replace("_", " "), spec.title, *spec.aliases):
            for form in (phrase, f"{phrase}s", f"{phrase}es"):
                found[_key(form)] = ("setting", spec.name)
        for phrase, value in spec.values.items():
            if phrase not in ("on", "off"):
                found[_key(phrase)] = ("value", (spec.name, value))
    return found


@cache
def _longest() -> int:
    return max(key.count(" ") + 1 for key in _lexicon())


def _unread_parts(tokens: Sequence[_Token]) -> list[str]:
    """The words that nothing stands for; words side by side are one part."""
    parts: list[list[str]] = [[]]
    for token in tokens:
        if token.kind in ("word", "number", "path"):
            parts[-1].append(token.text)
        elif parts[-1]:
            parts.append([])
    return [" ".join(part) for part in parts if part]


def _key(phrase: str) -> str:
    plain = phrase.lower().replace("’", "'").replace("'s ", " ")
    return re.sub(r"[\s_-]+", " ", plain).strip()


def _plain(text: str) -> str:
    return text.replace("−", "-").replace("10^", "1e")


def _number(text: str) -> float:
    return float(_plain(text))


def _is_joint(token: _Token) -> bool:
    return _key(token.text) in JOINTS


def _is_listed(tokens: Sequence[_Token], index: int) -> bool:
    """Whether a number is one of several: "20 or 40 steps" are values, "40 steps" is a count."""
    return index >= 2 and _is_joint(tokens[index - 1]) and tokens[index - 2].kind == "number"


def _lists(tokens: Sequence[_Token]) -> Iterator[tuple[int, int]]:
    """Where numbers stand side by side or joined by "or", from the first to behind the last."""
    index = 0
    while index < len(tokens):
        if tokens[index].kind != "number":
            index += 1
            continue
        end = index + 1
        while end < len(tokens):
            if tokens[end].kind == "number":
                end += 1
            elif _is_joint(tokens[end]) and end + 1 < len(tokens) and tokens[end + 1].kind == "number":
                end += 2
            else:
                break
        yield index, end
        index = end


def _setting_before(tokens: Sequence[_Token], start: int) -> str | None:
    """The setting whose name stands before a list, with nothing but linking words between."""
    for token in reversed(tokens[:start]):
        if token.kind == "setting":
            return str(token.meaning)
        if _key(token.text) not in LINKS:
            return None
    return None


def _setting_after(tokens: Sequence[_Token], end: int) -> str | None:
    token = tokens[end] if end < len(tokens) else None
    return str(token.meaning) if token is not None and token.kind == "setting" else None


def _words_before(tokens: Sequence[_Token], index: int) -> set[str]:
    """The harmless words directly before a token, up to three: articles and what introduces it."""
    found: set[str] = set()
    for token in reversed(tokens[max(0, index - 3) : index]):
        if token.kind not in ("harmless", "asked"):
            break
        found.add(_key(token.text).split()[-1])
    return found
