"""Every word of a topic has to be accounted for: what is left of it once it was read must ask for nothing.

Place in the flow: the last step of topic.py. How it is decided, of each word that nothing stands for:

1. A word of english.py asks for nothing.
2. A number that stands at no name of a setting is not understood, unless it is a year, a share, a reference or counts
   ordinary things (quantities.py).
3. A word that is written as a name (digits, capitals or an underscore within it) is not understood, wherever it stands.
4. Any other word is not understood where a question names what is varied or what is trained on: as what a question is
   about ("does X help", "X vs temperature"), after a word that takes such a thing ("effect of X", "on X", "with X"),
   beside a setting ("X and temperature", "an X learning rate").
5. Where nothing at all of the topic was read, every such word is not understood: one of them must be the subject.

Elsewhere an unknown word is taken for a remark of the person who asks. Words that are not understood and stand side by
side are one part, so that it reads as the person wrote it. This module knows no setting.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from researcher.planner.reading.english import FUNCTION_WORDS, QUESTION_WORDS, is_ordinary, word_set
from researcher.planner.reading.foreign import REMEDIES, Kind, Part
from researcher.planner.reading.quantities import find_harmless_numbers

_TOKEN = re.compile(r"[^\W_](?:[\w'’.+*^−-]*[\w+])?")
_NUMBER = re.compile(r"[-−]?[\d.]+(?:[eE][-−+]?\d+)?")
_NAME = re.compile(r"(?=.*[A-Za-z])(?:.*\d.*|.+[A-Z].*|.*_.*)", re.DOTALL)
_ARTICLES = frozenset(
    {"a", "an", "the", "this", "that", "these", "those", "my", "our", "your", "their", "its", "any", "some"}
)
_TAKES_A_THING = word_set("""
of on in for with without using about regarding between than versus vs or against via like unlike into onto by under
compare comparing test testing try trying vary varying tune tuning sweep sweeping ablate ablating study studying
investigate investigating examine examining evaluate evaluating add adding use using apply applying introduce
introducing explore remove removing train training replace replacing
""")
_AUXILIARIES = word_set("does do did is are was were can could should would will may might")
_ASKED_OF = word_set("""
help helps hurt hurts matter matters affect affects improve improves influence influences impact impacts vs versus
needed necessary worth worthwhile beat beats outperform outperforms
""")
_JOINED = re.compile(r"\s*(?:,|/|&|\b(?:and|or|vs\.?|versus|plus)\b)\s*", re.IGNORECASE)
_NAMES_SOMETHING = re.compile(
    r"(?:^|[.?!;,:]\s*)(?:does|do|is|are|can|should|will|would|could)\b"
    r"|\b(?:matters?|effects?|impacts?|influences?|affects?|compare|comparison|vs|versus)\b",
    re.IGNORECASE,
)
_CLAUSE_END = re.compile(r"[.,;:!?()\n]")


@dataclass(frozen=True, slots=True)
class _Word:
    """A word that is left of a topic, and whether it ends a clause."""

    text: str
    start: int
    end: int

    @property
    def plain(self) -> str:
        return self.text.lower().replace("’", "'")


def find_unread(rest: str, text: str) -> list[Part]:
    """The parts of `rest`, what is left of the topic `text`, that are not understood; places are those of both."""
    for start, end in find_harmless_numbers(rest):
        rest = rest[:start] + " " * (end - start) + rest[end:]
    words = [
        _Word(match.group().rstrip("."), match.start(), match.start() + len(match.group().rstrip(".")))
        for match in _TOKEN.finditer(rest)
    ]
    nothing_was_read = not any(was_read(text, rest, index) for index in range(len(text)))
    unknown = [
        (index, word) for index, word in enumerate(words) if _NUMBER.fullmatch(word.text) or not is_ordinary(word.text)
    ]
    asked = {
        index
        for index, word in unknown
        if nothing_was_read or _NUMBER.fullmatch(word.text) or _is_name(word) or _is_asked_of(words, index, rest, text)
    }
    spread = _spread(asked, [index for index, _ in unknown], words, text)
    # A number says more with the noun behind it.
    nouns = [index + 1 for index in spread if _NUMBER.fullmatch(words[index].text) and index + 1 < len(words)]
    nouns = [
        index
        for index in nouns
        if _stand_side_by_side(words[index - 1], words[index], text)
        and words[index].plain not in FUNCTION_WORDS | QUESTION_WORDS
    ]
    return _join([words[index] for index in sorted({*spread, *nouns})], text)


def asks_of_something(text: str) -> bool:
    """Whether a topic asks about one thing ("does X matter"), and not what there is to be found ("what makes agents
    learn?")."""
    return bool(_NAMES_SOMETHING.search(text))


def was_read(text: str, rest: str, index: int) -> bool:
    """Whether an earlier step read this character of the topic."""
    return text[index] != " " and rest[index] == " "


def _is_name(word: _Word) -> bool:
    return bool(_NAME.fullmatch(word.text))


def _is_asked_of(words: Sequence[_Word], index: int, rest: str, text: str) -> bool:
    """Whether a word stands where a question names what is varied or trained on."""
    word = words[index]
    following = words[index + 1] if index + 1 < len(words) else None
    if following is not None and following.plain in _ASKED_OF and not _is_cut(text, word.end, following.start):
        return True
    if _is_joined_to_what_was_read(word, rest, text):
        return True
    first = index
    has_article = False
    while first > 0:
        before = words[first - 1]
        if _is_cut(text, before.end, words[first].start):
            return False
        if _has_read(text, rest, before.end, words[first].start):
            return False
        if before.plain in _TAKES_A_THING:
            return True
        if before.plain in _AUXILIARIES:
            return _begins_clause(words, first - 1, rest, text)
        if before.plain in _ARTICLES:
            has_article = True
        elif before.plain in FUNCTION_WORDS | QUESTION_WORDS or has_article:
            return False
        first -= 1
    return False


def _begins_clause(words: Sequence[_Word], index: int, rest: str, text: str) -> bool:
    """Whether an auxiliary asks, as in "does X help", and does not state, as in "rewards are X"."""
    start = words[index].start
    if index == 0:
        return not _has_read(text, rest, 0, start)
    before = words[index - 1]
    if _has_read(text, rest, before.end, start):
        return False
    return _is_cut(text, before.end, start) or before.plain in FUNCTION_WORDS | QUESTION_WORDS


def _is_joined_to_what_was_read(word: _Word, rest: str, text: str) -> bool:
    """Whether "and", "or", a comma, a hyphen or an article with nothing between ties a word to a part that was read."""
    tail = text[word.end :]
    if joint := _JOINED.match(tail):
        place = word.end + joint.end()
        if place < len(text) and was_read(text, rest, place) and joint.group().strip() != ",":
            return True
    head = text[: word.start]
    joint = re.search(rf"(?:{_JOINED.pattern}|-)$", head, re.IGNORECASE)
    if joint and joint.start() > 0 and was_read(text, rest, joint.start() - 1) and joint.group().strip() != ",":
        return True
    article = re.search(r"\b(?:an?|the)\s$", head, re.IGNORECASE)
    place = word.end + 1
    return bool(article) and place < len(text) and text[word.end] in " -" and was_read(text, rest, place)


def _is_cut(text: str, start: int, end: int) -> bool:
    return bool(_CLAUSE_END.search(text[start:end]))


def _has_read(text: str, rest: str, start: int, end: int) -> bool:
    return any(was_read(text, rest, index) for index in range(start, end))


def _spread(asked: set[int], unknown: Sequence[int], words: Sequence[_Word], text: str) -> list[int]:
    """Unknown words that stand side by side with one that is not understood belong to it."""
    spread = set(asked)
    for order in (unknown, list(reversed(unknown))):
        for index in order:
            for beside in (index - 1, index + 1):
                if beside in spread and _stand_side_by_side(words[min(index, beside)], words[max(index, beside)], text):
                    spread.add(index)
    return sorted(spread)


def _stand_side_by_side(left: _Word, right: _Word, text: str) -> bool:
    return text[left.end : right.start] in (" ", "-")


def _join(words: Sequence[_Word], text: str) -> list[Part]:
    parts: list[Part] = []
    for word in words:
        kind = Kind.NUMBER if _NUMBER.fullmatch(word.text) else Kind.UNKNOWN
        last = parts[-1] if parts else None
        if last is not None and text[last.end : word.start] in (" ", "-"):
            parts[-1] = Part(text[last.start : word.end], last.start, last.kind, REMEDIES[last.kind])
        else:
            parts.append(Part(text[word.start : word.end], word.start, kind, REMEDIES[kind]))
    return parts
