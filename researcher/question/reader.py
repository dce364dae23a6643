"""The reader of topics without a language model: settings, values, an environment and question words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

from researcher.charter import Asked, ComparedAt, Factor, StudyKind
from researcher.errors import TopicInvalid
from researcher.question.flags import make_factor, value_as_text
from researcher.question.mentions import Mention, find_mentions
from researcher.question.sought import find_sought
from researcher.question.tokens import Token, TokenKind, as_written, tokenize
from researcher.question.words import BEFORE_COUNTS, BEFORE_MODELS, COUNTED, MODEL_FAMILIES, QUESTIONS, SWAPPED
from researcher.scope import ArmPart

LONGEST_TOPIC = 4000
"""The largest number of characters of a topic, which is a question, not a document."""
_RELATIONS = frozenset({"than", "beat", "beats", "outperform", "outperforms", "instead of"}) | SWAPPED
_ENDS_CLAUSE = frozenset({"and", "on", "at", "with", "without", "no", "using", "under", "for", "in", "over", "across"})
_OF_ARMS = frozenset({Asked.BETTER, Asked.SOONER, Asked.EQUAL, Asked.MORE_STABLE})
"""The relations that may be about what follows "without", rather than about another setting of the topic."""
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
    seeds, steps, runs, hours, GPUs and held-out episodes. `values` are those of each setting that the topic names.
    `sought` are the parts of an arm that the topic looks for; empty if it names none. `environments` are all that it
    names, of which `environment` is the first. `foreign_model` is the name of a model that is not bundled.
    `margin` is that of a question for equality.
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
    values: Mapping[str, tuple[Any, ...]] = field(default_factory=dict[str, tuple[Any, ...]])
    sought: tuple[ArmPart, ...] = ()
    environments: tuple[str, ...] = ()
    foreign_model: str = ""
    margin: float | None = None

    @property
    def names(self) -> frozenset[str]:
        """The settings that the topic names."""
        return frozenset(self.values)


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
        sought = find_sought(self._tokens)
        foreign_model = _find_foreign_model(self._tokens)
        environments = self._read_environments()
        counts = read_counts(self._tokens)
        compared_at, margin = self._read_equal(), self._read_margin()
        mentions = _coordinated(find_mentions(self._tokens), self._tokens)
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
            environment=environments[0] if environments else None,
            compared_at=compared_at,
            counts=counts,
            unread=tuple(dict.fromkeys(self._unread)),
            values=values_of(mentions),
            sought=sought,
            environments=environments,
            foreign_model=foreign_model,
            margin=margin,
        )

    def _read_environments(self) -> tuple[str, ...]:
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
        return tuple(known)

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

    def _read_equal(self) -> ComparedAt | None:
        found = [(index, token) for index, token in enumerate(self._tokens) if token.kind is TokenKind.EQUAL]
        for place, (index, token) in enumerate(found):
            after = self._tokens[index + 1] if index + 1 < len(self._tokens) else None
            if place or not (after is None or after.kind is TokenKind.STOP or after.key in _ENDS_CLAUSE):
                self._unread.append(token.text)
        return found[0][1].meaning if found else None

    def _read_margin(self) -> float | None:
        """Return the number behind "within" in a question for equality, and give its tokens the kind READ."""
        tokens = self._tokens
        if not any(token.kind is TokenKind.ASKED and token.meaning is Asked.EQUAL for token in tokens):
            return None
        for word, number, after in zip(tokens, tokens[1:], [*tokens[2:], Token("", TokenKind.STOP)], strict=False):
            is_within = word.key == "within" or (word.kind is TokenKind.ASKED and word.key.endswith(" within"))
            is_alone = after.kind in (TokenKind.STOP, TokenKind.HARMLESS)
            if is_within and is_alone and number.kind is TokenKind.NUMBER and float(number.number) > 0:
                number.kind = TokenKind.READ
                word.kind = TokenKind.READ if word.kind is TokenKind.WORD else word.kind
                return float(number.number)
        return None

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
        # Only flags can name the space of a search and its fixed settings, except for the model that it trains.
        self._unread += [mention.text for mention in mentions if not _is_one_model(mention)]
        if particular not in ([], [Asked.BEST]):
            self._unread.append(str(particular[0]))
        return Asked.BEST, StudyKind.OPTIMIZE

    def _sort_out(self, mentions: Sequence[Mention], asked: Asked) -> tuple[tuple[Factor, ...], dict[str, Any]]:
        """Return which settings vary and which are fixed; an ambiguous setting is unread."""
        factors: list[Factor] = []
        fixed: dict[str, Any] = {}
        joined = list(_once_each(mentions, self._unread))
        has_explicit = any(mention.has_levels for mention in joined)
        is_alone = len(mentions) == 1
        varied: list[Mention] = []
        for mention in joined:
            value = self._fixed_value(mention, asked, is_alone=is_alone, has_explicit=has_explicit)
            if value is None:
                varied.append(mention)
            else:
                fixed[mention.name] = value
        for mention in varied:
            # One value is compared with the usual one if the topic says nothing else.
            levels = self._levels(mention, asked, is_alone=len(varied) == 1 and (is_alone or not mention.values))
            if (
                (mention.values or mention.has_levels or not has_explicit)
                and len({value_as_text(value) for value in levels}) > 1
                and len(set(map(str, levels))) == len(levels)
            ):
                is_explicit = bool(mention.values) or mention.is_without or asked is Asked.NEEDED
                factors.append(_with_baseline(make_factor(mention.spec, levels, explicit=is_explicit), mention))
            else:
                self._unread.append(mention.text)
        return tuple(factors), fixed

    def _fixed_value(self, mention: Mention, asked: Asked, *, is_alone: bool, has_explicit: bool) -> Any:
        """Return the value of a setting that every arm has; None if the setting is none of these."""
        if mention.is_off:
            is_compared = self._is_question() if is_alone else not has_explicit and asked in _OF_ARMS
            return mention.spec.off if not mention.values and not is_compared else None
        if len(mention.values) != 1 or mention.is_without:
            return None
        is_said = mention.is_given and not (is_alone and self._is_question())
        is_apart = not is_alone and mention.is_named_first and mention.is_clear and self._is_clause(mention)
        return mention.values[0] if is_said or is_apart else None

    def _levels(self, mention: Mention, asked: Asked, *, is_alone: bool) -> tuple[Any, ...]:
        values, is_beside = mention.values, mention.is_given and not is_alone and not mention.is_without
        # "At 1e-3, 16" beside another setting fixes nothing.
        if is_beside or not mention.is_clear or (mention.is_without and values):
            return ()
        if mention.has_levels:
            return values or mention.on_and_off
        if values:
            return (mention.usual, values[0]) if is_alone and mention.usual not in (None, values[0]) else ()
        return mention.bare_levels(asked, is_alone=is_alone)

    def _is_question(self) -> bool:
        return any(token.kind is TokenKind.ASKED or token.key in QUESTIONS for token in self._tokens)

    def _is_clause(self, mention: Mention) -> bool:
        """Return whether a mention stands apart from all other values: ", batch size 8"."""
        before, after = _around(self._tokens, mention.start, mention.end)
        return (before is None or before.kind is TokenKind.STOP) and (
            after is None or after.kind is TokenKind.STOP or after.key in _ENDS_CLAUSE
        )

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


def _is_one_model(mention: Mention) -> bool:
    return mention.name == "model" and len(mention.values) == 1 and not mention.is_without


def _find_foreign_model(tokens: Sequence[Token]) -> str:
    """Return the name of a known model that is not bundled, behind a word such as "with" or "on"; empty for none."""
    for before, token in pairwise(tokens):
        if before.key in BEFORE_MODELS and token.kind is TokenKind.WORD and token.key.startswith(MODEL_FAMILIES):
            return token.text
    return ""


def read_counts(tokens: Sequence[Token]) -> dict[str, float]:
    """Return the numbers of what is counted, and give their tokens the kind READ.

    A number directly precedes what it counts ("5 seeds") or follows its sign ("seeds: 5"), apart from other values.
    What is counted twice is not read.
    """
    found: list[tuple[str, float, Sequence[Token]]] = []
    for index, token in enumerate(tokens):
        if (name := _counted(token)) is None:
            continue
        start, end = index - 1, index + 1
        if end < len(tokens) and tokens[end].key in ("=", ":") and token.key.endswith("s"):
            start, end = index, index + 3
        number = tokens[start] if start == index - 1 else tokens[min(end, len(tokens)) - 1]
        if start < 0 or end > len(tokens) or (number.kind is not TokenKind.NUMBER and number.key != "one"):
            continue
        value = 1.0 if number.key == "one" else float(number.number)
        is_whole = name == "max_hours" or value == int(value)
        if is_whole and _is_set_off(tokens, start, end, name):
            found.append((name, value, tokens[max(0, start - 1) : end]))
    names = [name for name, _, _ in found]
    once = [item for item in found if names.count(item[0]) == 1]
    for _, _, run in once:
        for token in run:
            if token.kind in (TokenKind.NUMBER, TokenKind.COUNT, TokenKind.SETTING, TokenKind.WORD):
                token.kind = TokenKind.READ
    return {name: value for name, value, _ in once}


def _counted(token: Token) -> str | None:
    """Return what a token counts: "training steps" are counted, and are a setting as well."""
    if token.kind is TokenKind.COUNT:
        return str(token.meaning)
    return COUNTED.get(token.key) if token.kind is TokenKind.SETTING else None


def _is_set_off(tokens: Sequence[Token], start: int, end: int, name: str) -> bool:
    before, after = _around(tokens, start, end)
    is_begun = before is None or before.kind is TokenKind.STOP or name in BEFORE_COUNTS.get(before.key, ())
    if before is not None and before.key in ("for", "with") and name == "steps":
        is_begun &= not _is_bare_setting(tokens[: start - 1])
    if tokens[start].kind is TokenKind.COUNT and after is not None and after.kind is TokenKind.STOP:
        # "Seeds: 3, 5" are several numbers, and "seeds: 3, 50 steps" are not.
        following = tokens[end + 1 : end + 3]
        is_begun &= not following or following[0].kind is not TokenKind.NUMBER or _counted(following[-1]) is not None
    return is_begun and (after is None or after.kind is TokenKind.STOP or after.key in _ENDS_CLAUSE)


def _is_bare_setting(tokens: Sequence[Token]) -> bool:
    """Return whether a setting comes last that "for 20 steps" may be about alone, as in "KL for 20 steps"."""
    *_, before, last = (None, None, *tokens)
    is_named = last is not None and last.kind is TokenKind.SETTING
    return is_named and (
        before is None or (before.kind is not TokenKind.NUMBER and before.key not in ("no", "without"))
    )


def _around(tokens: Sequence[Token], start: int, end: int) -> tuple[Token | None, Token | None]:
    """Return the tokens before and after a part of the topic; None at its ends."""
    return tokens[start - 1] if start else None, tokens[end] if end < len(tokens) else None


def _coordinated(mentions: Sequence[Mention], tokens: Sequence[Token]) -> list[Mention]:
    """Return the mentions with "at" and "without" said of all that they cover: "at lr 1e-3 and temperature 0.7"."""
    found: list[Mention] = []
    for mention in mentions:
        before = found[-1] if found else mention
        between = {token.key for token in tokens[before.end : mention.start]} - {"a", "an", "the"}
        if before.is_given and len(before.values) == len(mention.values) == 1 and between and between <= {"and", ","}:
            mention = replace(mention, is_given=True)
        is_other = before.name != mention.name
        if before.is_off and is_other and not mention.values and between and between <= {"and", "or", ","}:
            mention = replace(mention, is_without=True, is_with=False)
        found.append(mention)
    return found


def values_of(mentions: Sequence[Mention]) -> dict[str, tuple[Any, ...]]:
    """Return the values that are said of each setting, each value once."""
    found: dict[str, tuple[Any, ...]] = {}
    for mention in mentions:
        before = {value_as_text(value): value for value in (*found.get(mention.name, ()), *mention.values)}
        found[mention.name] = tuple(before.values())
    return found


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
    kinds = (TokenKind.WORD, TokenKind.NUMBER, TokenKind.PATH, TokenKind.COUNT)
    runs = groupby(tokens, key=lambda token: token.kind in kinds)
    return [as_written(list(run)) for is_unread, run in runs if is_unread]
