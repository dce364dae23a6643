"""A look at recorded attempts: whether the model solved the tasks, or the code of the program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

from researcher.evaluation.manipulation import text_of
from swarm.environments import Environment
from swarm.program import EndedAttempt
from swarm.schemas import EpisodeDetail, TurnView
from swarm.tasks import Split
from swarm.types import Message

NOT_WRITTEN_BELOW = 0.5
"""The share of the characters of a reply below which the model did not write it."""
LEAST_CHARS = 3
"""A shorter answer may stand in any prompt."""
LEAST_OTHERS = 16
"""The answers of other tasks that a prompt is compared with, at least; it holds none of them if it tells the answer."""
MOST_TASKS = 200
"""The tasks of a split whose answers are read, and the attempts that are looked at."""
LEAST_BY_CODE = 3
SHARE_BY_CODE = 0.1
"""The number of solved attempts, and their share, from which on the code has solved tasks in the model's place."""
LEAST_CHOICES = 12
MOST_MISSED = 0.05
"""The choices that must have been seen, and the share of wrong ones above which the code does not know the answer."""


@dataclass(frozen=True, slots=True)
class Authorship:
    """The number of attempts, and of those in which the code did the work.

    `told` attempts had the answer in their first request. `unwritten` ones were solved by a reply that the model did
    not write. `by_code` attempts are solved ones that are either. `choices` are attempts whose program chose among
    different replies that no vote decides; in `missed` of them it chose a wrong one.
    """

    attempts: int = 0
    solved: int = 0
    told: int = 0
    unwritten: int = 0
    by_code: int = 0
    choices: int = 0
    missed: int = 0

    def __add__(self, other: Authorship) -> Authorship:
        mine, theirs = asdict(self), asdict(other)
        return Authorship(**{name: mine[name] + theirs[name] for name in mine})

    def to_json(self, earlier: Iterable[Mapping[str, Any]] = ()) -> dict[str, Any]:
        """Return the counts in the form in which the details of an evaluation have them.

        The `problem` among them is that of all scores of the arm; `earlier` are the details of its other scores.
        """
        names = asdict(self)
        others = (Authorship(**{name: each[name] for name in names}) for each in earlier)
        problem = sum(others, self).find_problem()
        return {**names, **({} if problem is None else {"problem": problem})}

    def find_problem(self) -> str | None:
        """Return why the score is not one of the model; None if nothing speaks against it."""
        if self.by_code >= LEAST_BY_CODE and self.by_code >= SHARE_BY_CODE * self.solved:
            return (
                f"its code and not the model solved {self.by_code} of {self.solved} solved attempts: {self.told} first "
                f"requests held the answer, and {self.unwritten} solving replies were not written by the model"
            )
        if self.choices >= LEAST_CHOICES and self.missed <= MOST_MISSED * self.choices:
            return (
                f"its code knows the answers: in {self.choices - self.missed} of {self.choices} attempts it chose the "
                "right one of several replies to the same request, where no vote decides"
            )
        return None


def read_answers(environment: Environment, split: Split, *, skip: int = 0) -> dict[str, str]:
    """Return the known answers of some tasks of a split, by task, as far as they are long enough to be recognized."""
    items = islice(environment.tasks(split), skip, skip + MOST_TASKS)
    known = ((item.task.task_id, environment.solution(item)) for item in items)
    plain = {task: _plain(answer) for task, answer in known if answer is not None}
    return {task: answer for task, answer in plain.items() if len(answer) >= LEAST_CHARS}


def count_authorship(attempts: Sequence[tuple[EndedAttempt, EpisodeDetail]], answers: Mapping[str, str]) -> Authorship:
    """Return the counts over attempts, each with its record; `answers` are those of `read_answers`."""
    told = [is_told(attempt, answers, detail.turns[:1]) for attempt, detail in attempts]
    solved = [attempt.grade is not None and attempt.grade.is_success for attempt, _ in attempts]
    unwritten = [is_solved and _is_unwritten(detail) for is_solved, (_, detail) in zip(solved, attempts, strict=True)]
    chosen = list(_choices(attempts, answers))
    return Authorship(
        attempts=len(attempts),
        solved=sum(solved),
        told=sum(told),
        unwritten=sum(unwritten),
        by_code=sum(s and (t or u) for s, t, u in zip(solved, told, unwritten, strict=True)),
        choices=len(chosen),
        missed=chosen.count(False),
    )


def is_told(attempt: EndedAttempt, answers: Mapping[str, str], turns: Iterable[TurnView]) -> bool:
    """Return whether the agent wrote the answer into one of the requests before the model said it.

    It did not if the task holds the answer, or if the requests hold answers of other tasks too.
    """
    answer = answers.get(attempt.task.task_id)
    others = [other for task, other in answers.items() if task != attempt.task.task_id]
    given = _plain(" ".join(text_of(message) for message in _opening(attempt)))
    if answer is None or answer in given or len(others) < LEAST_OTHERS:
        return False
    for turn in turns:
        asked = "\n".join(_texts_of_request(turn))
        if answer in (prompt := _plain(asked)):
            return not any(other in prompt for other in others if other not in given)
        if answer in _plain(text_of(turn.reply)):
            return False
    return False


def _opening(attempt: EndedAttempt) -> Iterator[Message]:
    """Yield the messages that the task begins with."""
    for message in attempt.transcript:
        if message.get("role") == "assistant":
            return
        yield message


def _texts_of_request(turn: TurnView) -> Iterator[str]:
    """Yield all texts by which an agent can tell the model something, those that restrict its sampling too."""
    yield from map(text_of, turn.messages)
    yield from map(str, turn.tools)
    yield from (str(turn.params[name]) for name in ("grammar", "stop") if turn.params.get(name))


def _is_unwritten(detail: EpisodeDetail) -> bool:
    share = detail.episode.model_share
    return share is not None and share < NOT_WRITTEN_BELOW


def _choices(attempts: Sequence[tuple[EndedAttempt, EpisodeDetail]], answers: Mapping[str, str]) -> Iterator[bool]:
    """Yield whether the choice was right, for each attempt that shows whether the program knows the answer.

    An attempt that ends with a wrong reply before all calls are used shows that the program does not.
    """
    read = [(_replies_to_one_request(detail), attempt) for attempt, detail in attempts]
    most = max((len(replies) for replies, _ in read), default=0)
    for replies, attempt in read:
        answer, final = answers.get(attempt.task.task_id), _plain(_answer_of(attempt))
        if answer is None or final not in replies or most < 2:
            continue
        is_solved = attempt.grade is not None and attempt.grade.is_success
        counted, right = Counter(replies), {answer, final} if is_solved else {answer}
        wrong = max((count for text, count in counted.items() if text not in right), default=0)
        if is_solved and 0 < counted[final] <= wrong:
            yield True
        elif not is_solved and (counted[answer] or len(replies) < most):
            yield False


def _replies_to_one_request(detail: EpisodeDetail) -> list[str]:
    """Return the replies of an attempt all of whose requests are alike; empty for one of several kinds of requests."""
    asked = {tuple(_plain(text_of(message)) for message in turn.messages) for turn in detail.turns}
    return [_plain(text_of(turn.reply)) for turn in detail.turns] if len(asked) == 1 else []


def _answer_of(attempt: EndedAttempt) -> str:
    said = [text_of(message) for message in attempt.transcript if message.get("role") == "assistant"]
    return said[-1] if len(said) == 1 else ""


def _plain(text: str) -> str:
    """Return the letters and digits of a text, so that no spelling hides an answer."""
    return "".join(sign for sign in text.casefold() if sign.isalnum())
