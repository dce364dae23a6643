"""The text that the code of an agent adds to its requests, beyond task, tools and the model's replies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import pairwise

from researcher.evaluation.readings import read_words
from researcher.evaluation.request_parts import said_by, strings_of
from swarm.schemas import TurnView

COMPARED = 4
"""The other attempts whose words show which words of an attempt are those of all tasks."""
MOST_WORDS = 400
"""The added words of an attempt that are looked at: its first ones."""
MOST_TURNS = 8
"""The requests of an attempt that are looked at: its first ones."""


@dataclass(frozen=True, slots=True)
class AskedTask:
    """The requests of an attempt, the texts that its environment gave, and the answer; None if it is not known."""

    turns: Sequence[TurnView]
    given: str
    answer: str | None


@dataclass(frozen=True, slots=True)
class AddedText:
    """The words that code has added up to a request, without those that it adds for every task.

    `known` are the words of the task, and of the model's replies before. `turn` is the number of the request.
    """

    turn: int
    words: tuple[str, ...]
    known: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Words:
    """The words that code adds in all requests of an attempt, and for each request their number and what is known."""

    words: tuple[str, ...]
    ends: tuple[tuple[int, tuple[str, ...]], ...]


def find_added(asked: Sequence[AskedTask]) -> list[list[AddedText]]:
    """Return the words that code added for each task, after each request that added some."""
    read = [_read(each) for each in asked]
    others = [[read[(index + step) % len(read)].words for step in range(1, min(COMPARED, len(read) - 1) + 1)]
              for index in range(len(read))]  # fmt: skip
    return [list(_added(each, compared)) for each, compared in zip(read, others, strict=True)]


def _read(asked: AskedTask) -> _Words:
    """Return the words of the requests that are no words of the task or of an earlier reply."""
    known, words, seen = read_words(asked.given), list[str](), set[str]()
    ends: list[tuple[int, tuple[str, ...]]] = []
    for turn in asked.turns[:MOST_TURNS]:
        known_words = frozenset(known)
        texts = [text for text in strings_of(turn) if text not in seen]
        seen.update(texts)
        words += [word for text in texts for word in read_words(text) if word not in known_words]
        ends.append((min(len(words), MOST_WORDS), tuple(known)))
        known += read_words(said_by(turn.reply))
    return _Words(tuple(words[:MOST_WORDS]), tuple(ends))


def _added(read: _Words, others: Sequence[tuple[str, ...]]) -> Iterator[AddedText]:
    """Yield the words that one of the others, or more, does not have at the same place of its text."""
    places = (
        set[int]().union(*(_unmatched(read.words, other) for other in others)) if others else range(len(read.words))
    )
    for turn, ((begun, _), (ended, known)) in enumerate(pairwise([(0, ()), *read.ends])):
        if any(begun <= place < ended for place in places):
            yield AddedText(turn, tuple(read.words[place] for place in sorted(places) if place < ended), known)


def _unmatched(words: tuple[str, ...], other: tuple[str, ...]) -> set[int]:
    """Return the places of words that have no counterpart in another text."""
    shorter = min(len(words), len(other))
    begun = next((place for place in range(shorter) if words[place] != other[place]), shorter)
    ended = next((place for place in range(shorter - begun) if words[-1 - place] != other[-1 - place]), shorter - begun)
    middle = words[begun : len(words) - ended]
    left = set(range(begun, len(words) - ended))
    matcher = SequenceMatcher(None, middle, other[begun : len(other) - ended], autojunk=False)
    for block in matcher.get_matching_blocks():
        left -= set(range(begun + block.a, begun + block.a + block.size))
    return left
