"""The mentions of settings in a topic, with their values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from researcher.charter import Asked
from researcher.errors import TopicInvalid
from researcher.question.factors import SPECS, FactorSpec
from researcher.question.flags import read_value, value_as_text
from researcher.question.tokens import Token, TokenKind

_STUDY_DEFAULTS: Mapping[str, Any] = MappingProxyType({"lr": 1e-3, "mini_batch_num": 4, "total_steps": 30})
"""The defaults of a study that differ from those of a job."""
_ARTICLES = frozenset({"a", "an", "the"})
_GIVEN = frozenset({"at", "with", "using", "under"})
_OFF = frozenset({"without", "no"})
_LINKS = frozenset({"of", "is", "="})
_JOINTS = frozenset({"or", "and", "vs", "versus", "against", ","})
_BEFORE_BASELINE = frozenset({"than", "beat", "beats", "outperform", "outperforms", "instead of", "as good as"})


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
        if mention is None or (not near_unknown and _is_compound(tokens, mention)):
            index += 1
            continue
        found.append(mention)
        index = mention.end
    return _with_set_off_values(tokens, found)


def _mention_at(tokens: Sequence[Token], index: int) -> Mention | None:
    token = tokens[index]
    if token.kind is TokenKind.SETTING:
        name = str(token.meaning)
        first = _after_links(tokens, index + 1)
        end, values, baseline = _list_at(tokens, first, name, stops_at_names=True)
        if not values or _is_claimed(tokens, end):
            return _mention(tokens, name, index, index + 1)
        return _read(tokens, name, index, end, values, baseline)
    if token.kind is TokenKind.VALUE:
        name = str(token.meaning[0])
        end, values, baseline = _list_at(tokens, index, name, stops_at_names=False)
        # In "a cosine or a constant schedule", the name follows its values.
        end += end < len(tokens) and tokens[end].kind is TokenKind.SETTING and tokens[end].meaning == name
        return _read(tokens, name, index, end, values, baseline)
    if token.kind is TokenKind.NUMBER:
        return _mention_behind(tokens, index)
    return None


def _mention_behind(tokens: Sequence[Token], index: int) -> Mention | None:
    """Return a setting whose name directly follows a list: "8 or 16 episodes per task", "20 or 40 steps"."""
    before = tokens[index - 1] if index else None
    for place in range(index, len(tokens)):
        token = tokens[place]
        is_name = token.kind is TokenKind.SETTING
        is_steps = token.kind is TokenKind.COUNT and token.meaning == "steps" and place > index + 1
        if is_name or is_steps:
            name = str(token.meaning) if is_name else "total_steps"
            end, values, baseline = _list_at(tokens, index, name, stops_at_names=False)
            is_clear = (
                end == place and values and (before is None or before.kind not in (TokenKind.SETTING, TokenKind.WORD))
            )
            if not is_clear or _is_number(tokens, place + 1):
                return None
            return _read(tokens, name, index, place + 1, values, baseline)
        if token.kind is not TokenKind.NUMBER and not _is_joint(token):
            return None
    return None


def _read(tokens: Sequence[Token], name: str, start: int, end: int, values: tuple[Any, ...], baseline: Any) -> Mention:
    for token in tokens[start:end]:
        if token.kind in (TokenKind.NUMBER, TokenKind.COUNT):
            token.kind = TokenKind.READ
    return _mention(tokens, name, start, end, values, baseline)


def _mention(
    tokens: Sequence[Token], name: str, start: int, end: int, values: tuple[Any, ...] = (), baseline: Any = None
) -> Mention:
    leading = _leading(tokens, start)
    if baseline is None and leading & _BEFORE_BASELINE and len(values) == 1:
        baseline = values[0]
    is_without = bool(leading & _OFF)
    is_with = not is_without or {"with", "without"} <= leading
    return Mention(name, start, end, values, bool(leading & _GIVEN) and not is_without, is_without, is_with, baseline)


def _leading(tokens: Sequence[Token], start: int) -> set[str]:
    """Return the words that introduce a mention, without articles: "with", "with or without", "better than"."""
    place = start
    while place and tokens[place - 1].key in _ARTICLES:
        place -= 1
    if not place:
        return set()
    first = tokens[place - 1].key
    pair = [token.key for token in tokens[max(0, place - 3) : place]]
    if pair in (["with", "or", "without"], ["with", "and", "without"]):
        return {"with", "without"}
    return {first}


def _list_at(
    tokens: Sequence[Token], start: int, name: str, *, stops_at_names: bool
) -> tuple[int, tuple[Any, ...], Any]:
    """Return the end of the list of values from `start`, the values, and the value after "than".

    A list after a name stops before a number that belongs to another name: "lr 1e-3 or 3e-3, 8 episodes per task".
    """
    values: list[Any] = []
    baseline: Any = None
    end = place = start
    is_baseline = False
    while place < len(tokens):
        value = _value_of(tokens[place], name)
        if value is None or (
            stops_at_names and tokens[place].kind is TokenKind.NUMBER and _is_claimed(tokens, place + 1)
        ):
            break
        if is_baseline:
            baseline = value if baseline is None else baseline
        values.append(value)
        end = place = place + 1
        is_baseline = False
        while place < len(tokens) and (_is_joint(tokens[place]) or tokens[place].key in _ARTICLES):
            is_baseline |= tokens[place].key in _BEFORE_BASELINE
            place += 1
    return end, tuple(values), baseline


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


def _is_joint(token: Token) -> bool:
    is_relation = token.kind is TokenKind.ASKED and token.meaning in (Asked.BETTER, Asked.SOONER, Asked.EQUAL)
    return is_relation or token.key in _JOINTS or token.key in _BEFORE_BASELINE or token.key in ("learn", "learns")


def _is_claimed(tokens: Sequence[Token], place: int) -> bool:
    """Return whether the token here takes the number before it: a name, a counted thing or an unknown word."""
    return place < len(tokens) and tokens[place].kind in (TokenKind.SETTING, TokenKind.COUNT, TokenKind.WORD)


def _is_number(tokens: Sequence[Token], place: int) -> bool:
    return place < len(tokens) and tokens[place].kind is TokenKind.NUMBER


def _is_compound(tokens: Sequence[Token], mention: Mention) -> bool:
    beside = [tokens[place] for place in (mention.start - 1, mention.end) if 0 <= place < len(tokens)]
    return any(token.kind is TokenKind.WORD for token in beside)


def _after_links(tokens: Sequence[Token], place: int) -> int:
    while place < len(tokens) and (tokens[place].key in _LINKS or tokens[place].text == ":"):
        place += 1
    return place


def _with_set_off_values(tokens: Sequence[Token], found: list[Mention]) -> tuple[Mention, ...]:
    """Return the mentions; a single separate list of numbers becomes the values of a single setting."""
    places = [place for place, token in enumerate(tokens) if token.kind is TokenKind.NUMBER]
    if len(found) != 1 or not places or found[0].values:
        return tuple(found)
    [mention] = found
    end, values, baseline = _list_at(tokens, places[0], mention.name, stops_at_names=True)
    beside = [tokens[place] for place in (places[0] - 1, end) if 0 <= place < len(tokens)]
    if len(values) < 2 or places[-1] >= end or any(token.kind is TokenKind.WORD for token in beside):
        return tuple(found)
    for token in tokens[places[0] : end]:
        if token.kind is TokenKind.NUMBER:
            token.kind = TokenKind.READ
    start, last = min(mention.start, places[0]), max(mention.end, end)
    return (_mention(tokens, mention.name, mention.start, mention.end, values, baseline),) if start < last else ()
