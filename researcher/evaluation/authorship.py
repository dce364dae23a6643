"""A look at recorded attempts: whether the model solved the tasks, or the code of the program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import islice, takewhile
from typing import Any

from researcher.evaluation.added_text import AskedTask
from researcher.evaluation.choosing import LEAST_CHOICES, ChoosingAttempt, find_choices
from researcher.evaluation.narrowing import LimitedAttempt, find_narrowing, is_narrowed
from researcher.evaluation.readings import fold
from researcher.evaluation.request_parts import said_by
from researcher.evaluation.telling import find_told
from swarm.environments import Environment
from swarm.program import EndedAttempt
from swarm.schemas import EpisodeDetail
from swarm.tasks import Split
from swarm.types import Message

RecordedAttempt = tuple[EndedAttempt, EpisodeDetail]

NOT_WRITTEN_BELOW = 0.5
"""The share of the characters of a reply below which the model did not write it."""
LEAST_CHARS = 3
"""A shorter answer may stand in any reply."""
MOST_TASKS = 200
"""The tasks of a split whose answers are read, and the attempts that are looked at."""
LEAST_BY_CODE = 3
SHARE_BY_CODE = 0.1
"""The number of solved attempts, and their share, from which on the code has solved tasks in the model's place."""
MOST_MISSED = 0.05
"""The share of wrong choices above which the code does not know the answer."""


@dataclass(frozen=True, slots=True)
class Authorship:
    """The number of attempts, and of those in which the code did the work.

    In `told` attempts the text that code added to the requests knows more of the own answer than of others, and
    `readings` say how; there are none unless chance is ruled out. `narrowed` ones got the answer from the model under a
    limit that depends on the task and leaves few other replies. `limits` are the names of all limits that depend on the
    task. `unwritten` attempts were solved by a reply that the model did not write. `by_code` attempts are solved ones
    that are narrowed or unwritten. `choices` are attempts whose program chose among different replies that no vote
    decides; in `missed` of them it chose a wrong one.
    """

    attempts: int = 0
    solved: int = 0
    told: int = 0
    narrowed: int = 0
    unwritten: int = 0
    by_code: int = 0
    choices: int = 0
    missed: int = 0
    limits: tuple[str, ...] = ()
    readings: tuple[str, ...] = ()

    def __add__(self, other: Authorship) -> Authorship:
        pairs = {each.name: (getattr(self, each.name), getattr(other, each.name)) for each in fields(self)}
        joined: dict[str, Any] = {
            name: tuple(sorted({*one, *two})) if isinstance(one, tuple) else one + two
            for name, (one, two) in pairs.items()
        }
        return Authorship(**joined)

    @classmethod
    def from_json(cls, details: Mapping[str, Any]) -> Authorship:
        values = ((each.name, details[each.name]) for each in fields(cls))
        named: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in values}
        return cls(**named)

    def to_json(self, earlier: Iterable[Mapping[str, Any]] = ()) -> dict[str, Any]:
        """Return the counts in the form in which the details of an evaluation have them.

        The `problem` among them is that of all scores of the arm; `earlier` are the details of its other scores.
        """
        named = {each.name: getattr(self, each.name) for each in fields(self)}
        counted = {name: list(value) if isinstance(value, tuple) else value for name, value in named.items()}
        problem = sum(map(Authorship.from_json, earlier), self).find_problem()
        return counted if problem is None else {**counted, "problem": problem}

    def find_problem(self) -> str | None:
        """Return why the score is not one of the model; None if nothing speaks against it."""
        if self.told:
            return (
                f"its code tells the model about the answer: in {self.told} of {self.attempts} attempts the text that "
                f"it added holds more of the own answer than of other tasks' answers ({', '.join(self.readings)})"
            )
        if self.by_code >= LEAST_BY_CODE and self.by_code >= SHARE_BY_CODE * self.solved:
            return (
                f"its code and not the model solved {self.by_code} of {self.solved} solved attempts: "
                f"{self.narrowed} replies were narrowed to few others{self._by_limits()}, and "
                f"{self.unwritten} solving replies were not written by the model"
            )
        if self.choices >= LEAST_CHOICES and self.missed <= MOST_MISSED * self.choices:
            return (
                f"its code knows the answers: in {self.choices - self.missed} of {self.choices} attempts it chose the "
                "right one of several replies, where no vote decides"
            )
        return None

    def _by_limits(self) -> str:
        return f" ({', '.join(self.limits)})" if self.narrowed else ""


def read_answers(environment: Environment, split: Split, *, skip: int = 0) -> dict[str, str]:
    """Return the known answers of some tasks of a split, by task, as letters and digits."""
    items = islice(environment.tasks(split), skip, skip + MOST_TASKS)
    known = ((item.task.task_id, environment.solution(item)) for item in items)
    plain = {task: fold(answer) for task, answer in known if answer is not None}
    return {task: answer for task, answer in plain.items() if answer}


def count_authorship(attempts: Sequence[RecordedAttempt], answers: Mapping[str, str]) -> Authorship:
    """Return the counts over attempts, each with its record; `answers` are those of `read_answers`."""
    # The order in which attempts ended is chance, and the counts are computed again from the record.
    attempts = sorted(attempts, key=lambda each: (each[0].task.task_id, each[0].episode_id))
    solved = [attempt.grade is not None and attempt.grade.is_success for attempt, _ in attempts]
    finals = [list(_answers_of(attempt)) for attempt, _ in attempts]
    right = [answers.get(attempt.task.task_id) for attempt, _ in attempts]
    long = [answer if answer is not None and len(answer) >= LEAST_CHARS else None for answer in right]
    limited = [
        LimitedAttempt(detail.turns, said, answer)
        for (_, detail), said, answer in zip(attempts, finals, long, strict=True)
    ]
    limits = find_narrowing(limited)
    narrowed = [is_narrowed(each, found.turns) for each, found in zip(limited, limits, strict=True)]
    unwritten = [
        ok and _is_unwritten(detail, said) for ok, (_, detail), said in zip(solved, attempts, finals, strict=True)
    ]
    chosen = list(
        find_choices(
            [
                ChoosingAttempt(
                    detail.turns, _given(attempt), fold(said[0]) if len(said) == 1 else "", answer, ok, found.turns
                )
                for (attempt, detail), said, ok, found, answer in zip(
                    attempts, finals, solved, limits, long, strict=True
                )
            ]
        )
    )  # fmt: skip
    telling = find_told(ask_tasks(attempts, answers), list(answers.values()))
    return Authorship(
        attempts=len(attempts),
        solved=sum(solved),
        told=len(telling.attempts),
        narrowed=sum(narrowed),
        unwritten=sum(unwritten),
        by_code=sum(ok and (n or u) for ok, n, u in zip(solved, narrowed, unwritten, strict=True)),
        choices=len(chosen),
        missed=chosen.count(False),
        limits=tuple(sorted(frozenset[str]().union(*(found.names for found in limits)))),
        readings=telling.readings,
    )


def ask_tasks(attempts: Sequence[RecordedAttempt], answers: Mapping[str, str]) -> list[AskedTask]:
    """Return the requests of attempts with what their environment said, and with the answers."""
    return [
        AskedTask(detail.turns, "\n".join(_said_by_environment(ended, detail)), answers.get(ended.task.task_id))
        for ended, detail in attempts
    ]


def read_opening(attempt: EndedAttempt) -> Iterator[Message]:
    """Yield the messages that the task begins with."""
    return takewhile(lambda message: message.get("role") != "assistant", attempt.transcript)


def _given(attempt: EndedAttempt) -> str:
    """Return the text that the task begins with."""
    return "\n".join(map(said_by, read_opening(attempt)))


def _answers_of(attempt: EndedAttempt) -> Iterator[str]:
    """Yield what the agent answered."""
    yield from (said_by(message) for message in attempt.transcript if message.get("role") == "assistant")


def _said_by_environment(attempt: EndedAttempt, detail: EpisodeDetail) -> Iterator[str]:
    """Yield what the environment said, up to a message of the agent that the model did not write."""
    written = {fold(said_by(turn.reply)) for turn in detail.turns}
    for message in attempt.transcript:
        if message.get("role") != "assistant":
            yield said_by(message)
        elif fold(said_by(message)) not in written:
            return


def _is_unwritten(detail: EpisodeDetail, answers: Sequence[str]) -> bool:
    share = detail.episode.model_share
    return share is not None and share < NOT_WRITTEN_BELOW and not any(_lists(detail, each) for each in answers)


def _lists(detail: EpisodeDetail, answer: str) -> bool:
    """Return whether an answer is a list of several replies of the model, whole and in the order of its requests."""
    left, listed = _words(answer), 0
    for turn in detail.turns:
        said = _words(said_by(turn.reply))
        if said and left[: len(said)] == said:
            left, listed = left[len(said) :], listed + 1
    return listed > 1 and not left


def _words(text: str) -> list[str]:
    return [fold(word) for word in text.split()]
