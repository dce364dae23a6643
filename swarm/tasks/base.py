"""The base of all task families: problems, seeded disjoint splits, and the exchange that pays the reward."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from itertools import islice
from random import Random
from typing import Any, ClassVar

from swarm.errors import BadRequest
from swarm.types import Message, Task, ToolSpec

# A pass over a split ends when so many draws in a row bring no new problem. This is large enough to draw nearly every
# problem of the smallest split (some 250), and small enough to cost milliseconds.
REPEATS_ENDING_A_PASS = 1000


class Split(StrEnum):
    """A part of the tasks: `train` to learn from, `validation` to choose between runs, `test` for the final score."""

    TRAIN = "train"
    VALIDATION = "validation"
    TEST = "test"


# Eight of every ten hash buckets are for training.
_BUCKETS = (Split.TRAIN,) * 8 + (Split.VALIDATION, Split.TEST)


def stable_digest(content: str) -> int:
    """Return the SHA-256 of `content` as an integer, which is the same in every process, unlike `hash`."""
    return int.from_bytes(hashlib.sha256(content.encode()).digest())


def split_of(content: str) -> Split:
    """Return the one split that a problem with this canonical content belongs to."""
    # As `stable_digest` says it, but millions of rows are told apart by this.
    return _BUCKETS[int.from_bytes(sha256(content.encode()).digest()) % 10]


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem, which `content` identifies within its family.

    `facts` are JSON values, and all that a verifier needs.
    """

    content: str
    query: str
    facts: Mapping[str, Any]


class Exchange(ABC):
    """One attempt at one task: `messages` open it, `reply` takes the agent's answers, and `reward` is 1.0 or 0.0.

    The reward stays 0.0 until the task is solved, so that an attempt that is cut short earns nothing.
    """

    def __init__(self, task: Task, max_turns: int) -> None:
        self.task = task
        self.messages: tuple[Message, ...] = ({"role": "user", "content": task.main_query},)
        self.reward = 0.0
        self.turns = 0
        self.is_over = False
        self._max_turns = max_turns

    def reply(self, message: Message) -> tuple[Message, ...] | None:
        """Take one assistant message and return the messages that follow it, or None when the attempt is over.

        Raises BadRequest if the attempt was over already.
        """
        if self.is_over:
            raise BadRequest("this attempt is over; open the task again for another one")
        self.turns += 1
        following = self.respond(message)
        self.is_over = following is None or self.turns >= self._max_turns
        return None if self.is_over else following

    @abstractmethod
    def respond(self, message: Message) -> tuple[Message, ...] | None:
        """Judge one answer and set `reward` if it solves the task.

        Returns the messages that follow, or None to end the attempt.
        """


class TaskFamily(ABC):
    """A kind of problem with a verifiable reward.

    `max_turns` bounds the agent's answers per attempt, and `max_tokens` is enough for each of them.
    """

    name: ClassVar[str]
    description: ClassVar[str]
    tools: ClassVar[tuple[ToolSpec, ...]] = ()
    max_turns: ClassVar[int] = 1
    max_tokens: ClassVar[int] = 12

    @abstractmethod
    def draw(self, rng: Random) -> Problem:
        """Draw one random problem of any split."""

    @abstractmethod
    def start(self, task: Task) -> Exchange:
        """Return a new attempt at a task that is known to be of this family."""

    def open(self, task: Task) -> Exchange:
        """Return a new attempt at `task`.

        Raises BadRequest if the task is not of this family.
        """
        if task.metadata.get("family") != self.name:
            raise BadRequest(f"task {task.task_id!r} is not of family {self.name!r}; take tasks from its tasks()")
        return self.start(task)

    def stream(self, split: Split | str, seed: int = 0) -> Iterator[Task]:
        """Yield tasks of one split without end, in an order fixed by `seed`.

        A task is repeated only when the split is used up. Raises BadRequest for an unknown split.
        """
        return self._draw_forever(_parse_split(split), seed)

    def tasks(self, split: Split | str, count: int, seed: int = 0, offset: int = 0) -> list[Task]:
        """Return `count` tasks of the stream of `split` and `seed`, after the first `offset`.

        This takes time proportional to offset + count, so a long run should iterate over `stream` instead. Raises
        BadRequest for an unknown split or a negative number.
        """
        if count < 0 or offset < 0:
            raise BadRequest(f"count and offset must not be negative, got count={count}, offset={offset}")
        return list(islice(self.stream(split, seed), offset, offset + count))

    def _draw_forever(self, split: Split, seed: int) -> Iterator[Task]:
        rng = Random(f"{self.name}/{split}/{seed}")
        seen: set[str] = set()
        repeats = 0
        while True:
            problem = self.draw(rng)
            if split_of(problem.content) is not split:
                continue
            if problem.content in seen and repeats < REPEATS_ENDING_A_PASS:
                repeats += 1
                continue
            if repeats >= REPEATS_ENDING_A_PASS:
                seen.clear()
            repeats = 0
            seen.add(problem.content)
            yield self._make_task(problem, split)

    def _make_task(self, problem: Problem, split: Split) -> Task:
        digest = f"{stable_digest(problem.content):064x}"[:16]
        metadata = {"family": self.name, "split": split.value, **problem.facts}
        return Task(main_query=problem.query, task_id=f"{self.name}/{split}/{digest}", metadata=metadata)


def text_of(message: Message) -> str:
    """Return the stripped text of a message, or an empty string if it has none."""
    content = message.get("content")
    return content.strip() if isinstance(content, str) else ""


def user_message(content: str) -> Message:
    return {"role": "user", "content": content}


def _parse_split(split: Split | str) -> Split:
    try:
        return Split(split)
    except ValueError:
        names = ", ".join(Split)
        raise BadRequest(f"unknown split {str(split)!r}; choose one of: {names}", param="split") from None
