"""The answers of an environment server: list tasks, continue an attempt, grade a transcript."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import TypeVar

from swarm.environments.base import Environment, EnvironmentTask, Session
from swarm.environments.server.protocol import (
    AttemptReplies,
    Description,
    Following,
    GradeAnswer,
    Graded,
    Reference,
    Solution,
    TaskPage,
)
from swarm.errors import Conflict, EnvironmentFailure, NotFound, SwarmError
from swarm.tasks.base import Split
from swarm.types import Message

ORDERS_KEPT = 16
"""Task orders in memory, one for each split and seed. A forgotten order is drawn again from its beginning."""
ATTEMPTS_KEPT = 4096
"""Running attempts in memory. A forgotten attempt is replayed."""

T = TypeVar("T")


class CallOverdue(EnvironmentFailure):
    """A call of user code that exceeded its time limit, in a thread that nothing can end."""


@dataclass(slots=True)
class _Order:
    """The tasks of a split in the order of one seed, drawn as far as requested."""

    rest: Iterator[EnvironmentTask]
    drawn: list[EnvironmentTask] = field(default_factory=list[EnvironmentTask])
    lock: threading.Lock = field(default_factory=threading.Lock)

    def upto(self, end: int) -> list[EnvironmentTask]:
        with self.lock:
            self.drawn.extend(islice(self.rest, max(0, end - len(self.drawn))))
            return self.drawn


@dataclass(slots=True)
class _Attempt:
    """A session, with its opening messages and those that followed each answer."""

    session: Session
    following: list[tuple[Message, ...] | None]
    lock: threading.Lock = field(default_factory=threading.Lock)


class EnvironmentService:
    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._lock = threading.Lock()
        self._order = lru_cache(maxsize=ORDERS_KEPT)(self._begin_order)
        self._attempts: OrderedDict[str, _Attempt] = OrderedDict()

    def describe(self) -> Description:
        of = self._environment
        return Description(
            name=of.name, description=of.description, digest=of.digest, tools=[dict(tool) for tool in of.tools],
            max_turns=of.max_turns, max_tokens=of.max_tokens, time_limit_s=of.time_limit_s,
        )  # fmt: skip

    def check_digest(self, digest: str | None) -> None:
        """Raise Conflict if the caller means another version of the environment."""
        if digest is not None and digest != self._environment.digest:
            raise Conflict(
                f"the environment {self._environment.name} was changed while it was in use: its digest was {digest} "
                f"and is now {self._environment.digest}; start the run again"
            )

    def list_tasks(self, split: Split, seed: int, start: int, count: int) -> TaskPage:
        drawn = self._limited(f"making tasks of {split}", lambda: self._order(split, seed).upto(start + count))
        page = drawn[start : start + count]
        return TaskPage(tasks=[item.task for item in page], is_end=len(page) < count)

    def continue_attempt(self, turn: AttemptReplies) -> Following:
        """Return the messages after the last answer of an attempt, always the same for the same answers."""
        task = self._find(turn.task)
        messages = self._limited(f"answering a turn of task {task.task.task_id}", lambda: self._following(turn, task))
        return Following(messages=None if messages is None else [dict(message) for message in messages])

    def grade(self, graded: Graded) -> GradeAnswer:
        task = self._find(graded.task)
        what = f"grading task {task.task.task_id}"
        grade = self._limited(what, lambda: self._environment.grade(task, graded.transcript))
        return GradeAnswer(grade=grade)

    def solve(self, reference: Reference) -> Solution:
        task = self._find(reference)
        return Solution(reply=self._environment.solution(task))

    def _find(self, reference: Reference) -> EnvironmentTask:
        order = self._order(reference.split, reference.seed)
        drawn = order.drawn
        # Nearly always the task has been listed before, and finding it runs no code of the environment.
        if len(drawn) <= reference.number:
            what = f"making tasks of {reference.split}"
            drawn = self._limited(what, lambda: order.upto(reference.number + 1))
        if len(drawn) <= reference.number or drawn[reference.number].task.task_id != reference.task_id:
            raise NotFound(
                f"{self._environment.name}: task {reference.number} of {reference.split} with seed {reference.seed} is "
                f"not {reference.task_id}: the same split and seed must always give the same tasks"
            )
        return drawn[reference.number]

    def _begin_order(self, split: Split, seed: int) -> _Order:
        return _Order(iter(self._environment.tasks(split, seed)))

    def _following(self, turn: AttemptReplies, task: EnvironmentTask) -> tuple[Message, ...] | None:
        attempt = self._attempt(turn.attempt, task)
        with attempt.lock:
            while len(attempt.following) <= len(turn.replies):
                if attempt.following[-1] is None:
                    return None
                attempt.following.append(attempt.session.reply(turn.replies[len(attempt.following) - 1]))
            return attempt.following[len(turn.replies)]

    def _attempt(self, name: str, task: EnvironmentTask) -> _Attempt:
        with self._lock:
            if name in self._attempts:
                self._attempts.move_to_end(name)
                return self._attempts[name]
        session = self._environment.open(task)
        with self._lock:
            attempt = self._attempts.setdefault(name, _Attempt(session, [session.messages]))
            while len(self._attempts) > ATTEMPTS_KEPT:
                self._attempts.popitem(last=False)
            return attempt

    def _limited(self, what: str, call: Callable[[], T]) -> T:
        """Return the result of a call, which runs in its own thread.

        Raises CallOverdue after the environment's time limit. Raises a SwarmError of the call as it is, and
        EnvironmentFailure for any other error.
        """
        outcome: list[T] = []
        failure: list[BaseException] = []

        def run() -> None:
            try:
                outcome.append(call())
            except BaseException as error:  # noqa: BLE001 - the boundary: any error of user code, SystemExit too, is data
                failure.append(error)

        limit_s = self._environment.time_limit_s
        thread = threading.Thread(target=run, name=what, daemon=True)
        thread.start()
        thread.join(limit_s)
        if outcome:
            return outcome[0]
        if not failure:
            raise CallOverdue(f"{self._environment.name}: {what} took longer than {limit_s:g} s")
        if isinstance(failure[0], SwarmError):
            raise failure[0]
        error = failure[0]
        raise EnvironmentFailure(f"{self._environment.name}: {what} failed: {type(error).__name__}: {error}") from error
