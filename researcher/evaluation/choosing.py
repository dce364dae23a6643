"""Choices among replies of the model: whether the code of an agent knows which of them is right."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from researcher.evaluation.readings import fold
from researcher.evaluation.request_parts import said_by, texts_of
from swarm.schemas import TurnView

LEAST_CHOICES = 12
"""The attempts that must show a choice, and from which on a kind of request is known."""
ALWAYS = 0.95
"""The share of attempts with an answer from the same place from which on the agent makes no choice."""
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class ChoosingAttempt:
    """The parts of an attempt that can show a choice by the code.

    `given` is the text of the task, `final` what the agent answered, and `answer` the right answer, None if it is not
    known. `narrow` are the numbers of the requests that left the model no choice.
    """

    turns: Sequence[TurnView]
    given: str
    final: str
    answer: str | None
    is_solved: bool
    narrow: frozenset[int] = frozenset()


def find_choices(attempts: Sequence[ChoosingAttempt]) -> Iterator[bool]:
    """Yield whether the choice was right, for each attempt that shows whether the program knows the answer.

    The requests of an attempt need not be alike. An attempt that ends with a wrong reply before all calls are used
    shows that the program does not know the answer.
    """
    replies = [[fold(said_by(turn.reply)) for turn in each.turns] for each in attempts]
    if _always_takes_one(attempts, replies):
        return
    votes = [list(_votes(*each)) for each in zip(attempts, replies, _kinds_without_answer(attempts, replies),
                                                 strict=True)]  # fmt: skip
    most = max((len(each.turns) for each in attempts), default=0)
    for attempt, counted in zip(attempts, map(Counter, votes), strict=True):
        answer, final = attempt.answer, attempt.final
        if answer is None or final not in counted or most < 2:
            continue
        right = {answer, final} if attempt.is_solved else {answer}
        wrong = max((count for text, count in counted.items() if text not in right), default=0)
        if attempt.is_solved and counted[final] <= wrong:
            yield True
        elif not attempt.is_solved and (counted[answer] or len(attempt.turns) < most):
            yield False


def _always_takes_one(attempts: Sequence[ChoosingAttempt], replies: Sequence[Sequence[str]]) -> bool:
    """Return whether nearly all attempts have as many requests and take the reply to the same one."""
    taken = Counter(
        (len(said), place)
        for attempt, said in zip(attempts, replies, strict=True)
        for place, text in enumerate(said)
        if text == attempt.final
    )
    return max(taken.values(), default=0) >= ALWAYS * len(attempts)


def _votes(attempt: ChoosingAttempt, replies: Sequence[str], skipped: frozenset[int]) -> Iterator[str]:
    """Yield the replies that the model gave of itself to requests for an answer."""
    for number, (turn, said) in enumerate(zip(attempt.turns, replies, strict=True)):
        is_repeated = said not in fold(attempt.given) and said in fold(texts_of(turn))
        if number not in skipped and number not in attempt.narrow and not is_repeated:
            yield said


def _kinds_without_answer(
    attempts: Sequence[ChoosingAttempt], replies: Sequence[Sequence[str]]
) -> list[frozenset[int]]:
    """Return for each attempt the numbers of its requests that ask for no answer.

    They are of a kind that many attempts have, and whose reply none of them gives as its answer.
    """
    own = [[_own_words(each, number) for number in range(len(each.turns))] for each in attempts]
    frequent = Counter(word for each in own for word in frozenset[str]().union(*each))
    known = {word for word, count in frequent.items() if count >= LEAST_CHOICES}
    kinds = [[words & known for words in each] for each in own]
    made = Counter(kind for each in kinds for kind in set(each))
    gave = {
        kind
        for attempt, said, of_attempt in zip(attempts, replies, kinds, strict=True)
        for text, kind in zip(said, of_attempt, strict=True)
        if text == attempt.final
    }
    none = {kind for kind, count in made.items() if count >= LEAST_CHOICES} - gave
    return [frozenset(number for number, kind in enumerate(each) if kind in none) for each in kinds]


def _own_words(attempt: ChoosingAttempt, number: int) -> frozenset[str]:
    """Return the words of a request that are neither of the task nor of an earlier reply."""
    earlier = [said_by(turn.reply) for turn in attempt.turns[:number]]
    return _words(texts_of(attempt.turns[number])) - _words("\n".join([attempt.given, *earlier]))


def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text.casefold()))
