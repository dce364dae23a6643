"""Requests that tell the model the answer to their task, in whatever part and spelling."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from researcher.evaluation.readings import HIDINGS, PLAIN, fold, read
from researcher.evaluation.request_parts import said_by, texts_of
from swarm.schemas import TurnView

LEAST_PIECE = 4
"""The letters of half an answer that no chance puts into a request."""
MOST_OTHERS = 48
"""The requests for other tasks that one is compared with."""
DEVIATIONS = 4.0
"""The standard deviations by which more requests must hold their answer than chance explains. There are some thirty
readings, so that three would be reached too often."""
LEAST_HELD = 2
"""The requests beyond chance from which on a reading counts: one may always be chance."""
BEGINNING = "beginning"
"""The reading of what the agent lets the model go on from."""


@dataclass(frozen=True, slots=True)
class TellingAttempt:
    """The requests of an attempt that count, the text that its task begins with, and the answer if it is known."""

    turns: Sequence[TurnView]
    given: str
    answer: str | None


@dataclass(frozen=True, slots=True)
class Telling:
    """The attempts whose requests hold the answer, and the number of them that chance does not explain."""

    held: frozenset[int] = frozenset()
    count: int = 0


@dataclass(frozen=True, slots=True)
class _Asked:
    """The readings of the requests of an attempt, and those of its task."""

    asked: Mapping[str, str] = field(default_factory=dict[str, str])
    given: Mapping[str, str] = field(default_factory=dict[str, str])

    def holds(self, answer: str, reading: str) -> bool:
        """Return whether a reading of the requests holds an answer that the same reading of the task does not."""
        asked, given = self.asked.get(reading, ""), self.given.get(reading, "")
        if reading == BEGINNING:
            return asked.endswith(tuple(_beginnings(answer)))
        pieces = _halves(answer) if reading == PLAIN else (answer,)
        return any(piece in asked and piece not in given for piece in pieces)


def find_told(attempts: Sequence[TellingAttempt]) -> Telling:
    """Return the attempts whose requests tell the answer.

    Text that the requests for other tasks have as well tells nothing about one task. An answer counts as told as far
    as it stands in the requests for its own task more often than in those for others.
    """
    asked = [_read(each) for each in attempts]
    held, count = set[int](), 0
    for reading in (PLAIN, BEGINNING, *HIDINGS):
        own = {
            index
            for index, each in enumerate(attempts)
            if each.answer is not None and asked[index].holds(each.answer, reading)
        }
        beyond = len(own) - _by_chance(attempts, asked, reading) if own else 0.0
        if beyond >= LEAST_HELD:
            held |= own
            count += math.floor(beyond)
    return Telling(frozenset(held), min(count, len(held)))


def _by_chance(attempts: Sequence[TellingAttempt], asked: Sequence[_Asked], reading: str) -> float:
    """Return the number of requests that may hold the answer of their task by chance, at most."""
    expected = variance = 0.0
    for index, attempt in enumerate(attempts):
        if attempt.answer is None:
            continue
        others = [
            asked[other].holds(attempt.answer, reading)
            for step in range(1, min(MOST_OTHERS, len(attempts) - 1) + 1)
            if attempts[other := (index + step) % len(attempts)].answer != attempt.answer
        ]
        # Who has nobody to be compared with is not accused.
        share = sum(others) / len(others) if others else 1.0
        expected += share
        variance += share * (1 - share)
    return expected + DEVIATIONS * math.sqrt(variance)


def _read(attempt: TellingAttempt) -> _Asked:
    """Read the requests up to the first reply that says the answer. What the model has said is given from then on."""
    texts, known, begun = list[str](), [attempt.given], ""
    for turn in attempt.turns:
        texts.append(texts_of(turn))
        given = read("\n".join(known))
        begun = _begun(turn, given[PLAIN]) or begun
        known.append(said_by(turn.reply))
        if attempt.answer is not None and attempt.answer in fold(known[-1]):
            break
    else:
        given = read("\n".join(known[: max(1, len(known) - 1)]))
    return _Asked({**read("\n".join(texts)), BEGINNING: begun}, given)


def _begun(turn: TurnView, known: str) -> str:
    """Return the reply that the agent has begun in the model's place: an assistant message, or a raw prompt's end."""
    last = turn.messages[-1] if turn.messages else {}
    text = fold(said_by(last))
    return text if last.get("role") in ("assistant", "prompt") and text not in known else ""


def _halves(answer: str) -> Iterator[str]:
    """Yield the pieces of an answer that give it away: at least half of it, and some letters."""
    size = min(len(answer), max(LEAST_PIECE, math.ceil(len(answer) / 2)))
    yield from (answer[start : start + size] for start in range(len(answer) - size + 1))


def _beginnings(answer: str) -> Iterator[str]:
    yield from (answer[:size] for size in range(max(1, len(answer) // 2), len(answer) + 1))
