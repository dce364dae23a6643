"""The reader of topics without a language model: settings, values, an environment and question words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

from researcher.charter import Asked, ComparedAt, Factor, StudyKind
from researcher.errors import TopicInvalid
from researcher.question.factors import SPECS, FactorSpec
from researcher.question.flags import make_factor, value_as_text
from researcher.question.mentions import Mention, Token, TokenKind, find_mentions, key_of, tokenize

LONGEST_TOPIC = 4000
"""The largest number of characters of a topic, which is a question, not a document."""
SHORTEST_NAME = 4
"""The fewest letters of an unknown word that is compared with names; shorter words resemble too many."""
LEAST_LIKENESS = 0.7
"""The least similarity of two words, as difflib measures it; words below it share only letters."""
_RELATIONS = frozenset({"than", "beat", "beats", "outperform", "outperforms", "instead of"})
_ENDS_COUNT = frozenset({"and", "on", "at", "with"})
_FACTORS_OF: Mapping[Asked, tuple[int, int]] = {
    Asked.MATTERS_MORE: (2, 2),
    Asked.INTERACTION: (2, 2),
    Asked.NEEDED: (1, 1),
    Asked.DIVERGES: (1, 1),
}
"""The least and the largest number of factors of a relation, if it is limited."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The content of a topic.

    `unread` are the parts that have no known meaning, or that stand where they mean nothing. `counts` are numbers of
    seeds, steps, runs, hours, GPUs and held-out episodes. `names` are the settings that the topic names.
    """

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


def read_topic(text: str, *, has_environment: bool = False) -> Reading:
    """Read a topic.

    If a flag names the environment (`has_environment`), the topic may end with its own name for it: "... on our support
    tickets?". Raises TopicInvalid for an empty or overlong topic.
    """
    text = " ".join(text.split())
    if not text:
        raise TopicInvalid("the topic is empty: say what to study, such as 'Does group size matter for word reversal?'")
    if len(text) > LONGEST_TOPIC:
        raise TopicInvalid(f"the topic has {len(text)} characters, at most {LONGEST_TOPIC} are read: shorten it")
    return _Reader(text, has_environment).read()


class _Reader:
    """A reader of one topic; each step reads its part and adds what it cannot read to `unread`."""

    def __init__(self, text: str, has_environment: bool) -> None:
        self._text = text
        self._has_environment = has_environment
        self._tokens = tokenize(text)
        self._unread: list[str] = []

    def read(self) -> Reading:
        environment = self._read_environment()
        counts = self._read_counts()
        compared_at = self._read_equal()
        mentions = find_mentions(self._tokens)
        self._check_negations(mentions)
        asked, kind = self._read_question(mentions)
        factors, fixed = self._sort_out(mentions, asked)
        self._check_relation(asked, kind, factors, mentions)
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
            names=frozenset(mention.name for mention in mentions),
        )

    def _read_environment(self) -> str | None:
        names: list[str] = []
        for token in self._tokens:
            if token.kind is TokenKind.PATH and Path(token.text.partition("?")[0]).expanduser().exists():
                token.kind, token.meaning = TokenKind.ENVIRONMENT, token.text
            if token.kind in (TokenKind.REFERENCE, TokenKind.ENVIRONMENT):
                names.append(token.meaning or token.text)
        known = list(dict.fromkeys(names))
        self._unread += known[1:]
        if self._has_environment:
            self._read_own_name()
        return known[0] if known else None

    def _read_own_name(self) -> None:
        """Read the words after the last "on" or "for" of a topic as the name of the environment."""
        end = len(self._tokens)
        while end and self._tokens[end - 1].kind is TokenKind.STOP:
            end -= 1
        place = end
        while place and self._tokens[place - 1].kind is TokenKind.WORD:
            place -= 1
        if {"on", "for"} & {token.key for token in self._tokens[max(0, place - 2) : place]}:
            for token in self._tokens[place:end]:
                token.kind = TokenKind.READ

    def _read_counts(self) -> dict[str, float]:
        """Return the numbers that directly precede what they count, each thing once.

        A number and its unit must be separate from all other values.
        """
        counts: dict[str, float] = {}
        for index, token in enumerate(self._tokens):
            number = self._tokens[index - 1] if index else None
            if token.kind is not TokenKind.COUNT or number is None or number.kind is not TokenKind.NUMBER:
                continue
            value, name = float(number.text.replace("−", "-")), str(token.meaning)
            is_whole = name == "max_hours" or value == int(value)
            if is_whole and name not in counts and self._is_set_off(index - 1, index + 1):
                number.kind = token.kind = TokenKind.READ
                counts[name] = value
        return counts

    def _is_set_off(self, start: int, end: int) -> bool:
        before = self._tokens[start - 1] if start else None
        after = self._tokens[end] if end < len(self._tokens) else None
        return (before is None or before.kind is TokenKind.STOP or before.key in ("with", "and")) and (
            after is None or after.kind is TokenKind.STOP or after.key in _ENDS_COUNT
        )

    def _read_equal(self) -> ComparedAt | None:
        found = [(index, token) for index, token in enumerate(self._tokens) if token.kind is TokenKind.EQUAL]
        for place, (index, token) in enumerate(found):
            after = self._tokens[index + 1] if index + 1 < len(self._tokens) else None
            if place or not (after is None or after.kind is TokenKind.STOP or after.key in _ENDS_COUNT):
                self._unread.append(token.text)
        return found[0][1].meaning if found else None

    def _check_negations(self, mentions: Sequence[Mention]) -> None:
        """Mark "without" and "no" as unread, unless they precede a setting."""
        starts = {mention.start for mention in mentions}
        for index, token in enumerate(self._tokens):
            place = index + 1
            while place < len(self._tokens) and self._tokens[place].key in ("a", "an", "the"):
                place += 1
            if token.key in ("no", "without") and place not in starts:
                self._unread.append(token.text)

    def _read_question(self, mentions: Sequence[Mention]) -> tuple[Asked, StudyKind]:
        found = dict.fromkeys(token.meaning for token in self._tokens if token.kind is TokenKind.ASKED)
        particular = [asked for asked in found if asked is not Asked.EFFECT]
        if len(particular) > 1:
            self._unread += [token.text for token in self._tokens if token.kind is TokenKind.ASKED][1:]
        if not any(token.kind is TokenKind.OPTIMIZES for token in self._tokens):
            return (particular or [Asked.EFFECT])[0], StudyKind.COMPARE
        # Only flags can name the space of a search and its fixed settings.
        self._unread += [mention.text for mention in mentions]
        if particular not in ([], [Asked.BEST]):
            self._unread.append(str(particular[0]))
        return Asked.BEST, StudyKind.OPTIMIZE

    def _sort_out(self, mentions: Sequence[Mention], asked: Asked) -> tuple[tuple[Factor, ...], dict[str, Any]]:
        """Return which settings vary and which are fixed; an ambiguous setting is unread."""
        factors: list[Factor] = []
        fixed: dict[str, Any] = {}
        explicit = [mention for mention in mentions if mention.has_levels]
        for mention in _once_each(mentions, self._unread):
            spec, values = mention.spec, mention.values
            is_beside = mention.is_given and len(mentions) > 1 and (bool(values) or not mention.is_without)
            is_last = mention.compared_with in (None, *values[-1:])
            if mention.has_levels:
                # "At 1e-3, 16" beside another setting fixes nothing, and "than" must precede a single value.
                levels = (values or mention.on_and_off) if is_last and not is_beside else ()
            elif values and is_beside:
                fixed[mention.name] = values[0]
                continue
            elif values and len(mentions) == 1 and mention.usual not in (None, values[0]):
                levels = (mention.usual, values[0])
            elif not values and not explicit and not is_beside:
                levels = mention.bare_levels(asked, is_alone=len(mentions) == 1)
            else:
                levels = ()
            if len({value_as_text(value) for value in levels}) < 2 or len(set(map(str, levels))) < len(levels):
                self._unread.append(mention.text)
                continue
            is_explicit = bool(values) or mention.is_without or asked is Asked.NEEDED
            factor = make_factor(spec, levels, explicit=is_explicit)
            factors.append(_with_baseline(factor, mention))
        return tuple(factors), fixed

    def _check_relation(
        self, asked: Asked, kind: StudyKind, factors: Sequence[Factor], mentions: Sequence[Mention]
    ) -> None:
        """Mark a relation as unread unless it has its parts: two factors to weigh or combine, one arm after "than"."""
        relations = [token for token in self._tokens if token.key in _RELATIONS]
        has_baseline = any(factor.compared_with for factor in factors)
        is_one = len(factors) == 1 and has_baseline and len(relations) == 1
        if kind is StudyKind.COMPARE and relations and not is_one and asked is not Asked.MATTERS_MORE:
            self._unread += [token.text for token in relations]
        least, most = _FACTORS_OF.get(asked, (0, len(factors)))
        if kind is StudyKind.COMPARE and not least <= len(factors) <= most:
            self._unread.append(next(token.text for token in self._tokens if token.meaning is asked))
        for first, second in pairwise(mentions):
            between = {token.key for token in self._tokens[first.end : second.start]}
            is_choice = bool({"or", "vs", "versus", "against"} & between) and first.name != second.name
            if is_choice and not first.values and not second.values and asked is not Asked.MATTERS_MORE:
                self._unread.append(f"{first.text} or {second.text}")


def _once_each(mentions: Sequence[Mention], unread: list[str]) -> Iterator[Mention]:
    """Yield adjacent mentions of one setting as one.

    A setting that returns after another one is unread, as in "A with X or B with Y": such pairs would be levels of
    their own.
    """
    runs = [list(run) for _, run in groupby(mentions, key=lambda mention: mention.name)]
    names = [run[0].name for run in runs]
    for run in runs:
        if names.count(run[0].name) > 1:
            unread.append(run[0].text)
        else:
            yield Mention.joined(run)


def _with_baseline(factor: Factor, mention: Mention) -> Factor:
    if mention.compared_with is None:
        return factor
    name = next((item.name for item in factor.levels if item.factors[factor.name] == mention.compared_with), None)
    return Factor(factor.name, factor.levels, factor.explicit, factor.needs, name)


def _unread_parts(tokens: Sequence[Token]) -> list[str]:
    """Return the words without a known meaning; adjacent words are one part."""
    parts: list[list[str]] = [[]]
    for token in tokens:
        if token.kind in (TokenKind.WORD, TokenKind.NUMBER, TokenKind.PATH, TokenKind.COUNT):
            parts[-1].append(token.text)
        elif parts[-1]:
            parts.append([])
    return [" ".join(part) for part in parts if part]


def propose(text: str) -> tuple[tuple[str, tuple[Any, ...]], ...]:
    """Return the settings that a topic names with their values, for a proposal after a refusal.

    A setting without values has its usual ones. Numbers beside unknown words are ignored.
    """
    found: dict[str, tuple[Any, ...]] = {}
    for mention in find_mentions(tokenize(text), near_unknown=True):
        found[mention.name] = tuple(dict.fromkeys((*found.get(mention.name, ()), *mention.values)))
    return tuple((name, values or SPECS[name].usual) for name, values in found.items())


def nearest_setting(text: str) -> str:
    """Return the setting whose names are most similar to the unknown words of a topic.

    Only settings with usual levels count. If none is similar, it is the learning rate.
    """
    unknown = [
        token.key for token in tokenize(text) if token.kind is TokenKind.WORD and len(token.key) >= SHORTEST_NAME
    ]
    likeness = {spec.name: sum(_likeness(spec, word) for word in unknown) for spec in SPECS.values() if spec.usual}
    # Among equally similar settings, the first in the table wins.
    return max(likeness, key=lambda name: likeness[name])


def _likeness(spec: FactorSpec, word: str) -> float:
    """Return the similarity of a word to the nearest name of the setting or word in it; 0 if none is similar."""
    phrases = [key_of(phrase) for phrase in (spec.name, spec.title, *spec.aliases)]
    names = {part for phrase in phrases for part in (phrase, *phrase.split()) if len(part) >= SHORTEST_NAME}
    nearest = max(SequenceMatcher(None, name, word).ratio() for name in names)
    return nearest if nearest >= LEAST_LIKENESS else 0.0
