"""A look at recorded attempts: whether the model solved the tasks, or the code of the program."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import islice
from typing import Any

from researcher.evaluation.choosing import LEAST_CHOICES, ChoosingAttempt, find_choices
from researcher.evaluation.narrowing import LimitedAttempt, find_narrowing, is_narrowed
from researcher.evaluation.readings import fold
from researcher.evaluation.request_parts import said_by
from researcher.evaluation.telling import Telling, TellingAttempt, find_told
from swarm.environments import Environment
from swarm.program import EndedAttempt
from swarm.schemas import EpisodeDetail
from swarm.tasks import Split

RecordedAttempt = tuple[EndedAttempt, EpisodeDetail]

NOT_WRITTEN_BELOW = 0.5
"""The share of the characters of a reply below which the model did not write it."""
LEAST_CHARS = 3
"""A shorter answer may stand in any prompt."""
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

    `told` attempts had the answer in a request, beyond what chance explains. `narrowed` ones got it from the model
    under a limit that depends on the task and leaves few other replies. `limits` are the names of all limits that
    depend on the task. `unwritten` attempts were solved by a reply that the model did not write. `by_code` attempts are
    solved ones that are any of these. `choices` are attempts whose program chose among different replies that no vote
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

    def __add__(self, other: Authorship) -> Authorship:
        counts = (each.name for each in fields(self) if each.name != "limits")
        limits = tuple(sorted({*self.limits, *other.limits}))
        return Authorship(**{name: getattr(self, name) + getattr(other, name) for name in counts}, limits=limits)

    @classmethod
    def from_json(cls, details: Mapping[str, Any]) -> Authorship:
        named = {each.name: details[each.name] for each in fields(cls)}
        return cls(**{**named, "limits": tuple(named["limits"])})

    def to_json(self, earlier: Iterable[Mapping[str, Any]] = ()) -> dict[str, Any]:
        """Return the counts in the form in which the details of an evaluation have them.

        The `problem` among them is that of all scores of the arm; `earlier` are the details of its other scores.
        """
        counted = {each.name: getattr(self, each.name) for each in fields(self)}
        problem = sum(map(Authorship.from_json, earlier), self).find_problem()
        return {**counted, "limits": list(self.limits), **({} if problem is None else {"problem": problem})}

    def find_problem(self) -> str | None:
        """Return why the score is not one of the model; None if nothing speaks against it."""
        if self.by_code >= LEAST_BY_CODE and self.by_code >= SHARE_BY_CODE * self.solved:
            return (
                f"its code and not the model solved {self.by_code} of {self.solved} solved attempts: {self.told} first "
                f"requests held the answer, {self.narrowed} replies were narrowed to few others{self._by_limits()}, "
                f"and {self.unwritten} solving replies were not written by the model"
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
    """Return the known answers of some tasks of a split, by task, as far as they are long enough to be recognized."""
    items = islice(environment.tasks(split), skip, skip + MOST_TASKS)
    known = ((item.task.task_id, environment.solution(item)) for item in items)
    plain = {task: fold(answer) for task, answer in known if answer is not None}
    return {task: answer for task, answer in plain.items() if len(answer) >= LEAST_CHARS}


def count_authorship(
    attempts: Sequence[RecordedAttempt], answers: Mapping[str, str], *, all_requests: bool = False
) -> Authorship:
    """Return the counts over attempts, each with its record; `answers` are those of `read_answers`.

    Only the first request of an attempt can tell the answer, or with `all_requests` each of them.
    """
    solved = [attempt.grade is not None and attempt.grade.is_success for attempt, _ in attempts]
    finals = [list(_answers_of(attempt)) for attempt, _ in attempts]
    limited = [
        LimitedAttempt(detail.turns, said, answers.get(attempt.task.task_id))
        for (attempt, detail), said in zip(attempts, finals, strict=True)
    ]
    limits = find_narrowing(limited)
    narrowed = [is_narrowed(each, found.turns) for each, found in zip(limited, limits, strict=True)]
    telling = find_told([_telling(each, answers, all_requests=all_requests) for each in attempts])
    unwritten = [ok and _is_unwritten(detail) for ok, (_, detail) in zip(solved, attempts, strict=True)]
    of_code = [ok and (n or u) for ok, n, u in zip(solved, narrowed, unwritten, strict=True)]
    chosen = list(
        find_choices(
            [
                ChoosingAttempt(
                    detail.turns, _given(attempt), fold(said[0]) if len(said) == 1 else "",
                    answers.get(attempt.task.task_id), ok, found.turns,
                )
                for (attempt, detail), said, ok, found in zip(attempts, finals, solved, limits, strict=True)
            ]
        )
    )  # fmt: skip
    return Authorship(
        attempts=len(attempts),
        solved=sum(solved),
        told=telling.count,
        narrowed=sum(narrowed),
        unwritten=sum(unwritten),
        by_code=sum(of_code) + _told_beside(telling, solved, of_code),
        choices=len(chosen),
        missed=chosen.count(False),
        limits=tuple(sorted(frozenset[str]().union(*(found.names for found in limits)))),
    )


def _told_beside(telling: Telling, solved: Sequence[bool], of_code: Sequence[bool]) -> int:
    """Return the solved attempts that were told the answer, without those that count as ones of the code anyway.

    Of the attempts whose request holds the answer, as large a share is left out as chance explains.
    """
    held = [ok and not other for ok, other in zip(solved, of_code, strict=True)]
    count = sum(is_held and index in telling.held for index, is_held in enumerate(held))
    return math.floor(count * telling.count / len(telling.held)) if telling.held else 0


def _telling(attempt: RecordedAttempt, answers: Mapping[str, str], *, all_requests: bool) -> TellingAttempt:
    ended, detail = attempt
    turns = detail.turns if all_requests else detail.turns[:1]
    return TellingAttempt(turns, _given(ended), answers.get(ended.task.task_id))


def _given(attempt: EndedAttempt) -> str:
    """Return the text that the task begins with."""
    return "\n".join(_opening(attempt))


def _opening(attempt: EndedAttempt) -> Iterator[str]:
    for message in attempt.transcript:
        if message.get("role") == "assistant":
            return
        yield said_by(message)


def _answers_of(attempt: EndedAttempt) -> Iterator[str]:
    """Yield what the agent answered."""
    yield from (said_by(message) for message in attempt.transcript if message.get("role") == "assistant")


def _is_unwritten(detail: EpisodeDetail) -> bool:
    share = detail.episode.model_share
    return share is not None and share < NOT_WRITTEN_BELOW
