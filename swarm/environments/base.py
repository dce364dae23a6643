"""What an environment is: tasks in three splits that never overlap, and a grader that says what an attempt is worth.

Place in the flow: the modules beside this one implement it, registry.py finds one by name. An agent sees the public
part of a task and the messages of its session; answers and graders stay here. This module knows nothing of models,
episodes or HTTP.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from swarm.errors import EnvironmentFailure, EnvironmentInvalid
from swarm.tasks.base import Split
from swarm.types import Message, Task, ToolSpec

TIME_LIMIT_S = 60.0

Transcript = Sequence[Message]
"""The messages of one attempt in order, the opening ones included."""


@dataclass(frozen=True, slots=True)
class EnvironmentTask:
    """`task` is what a program may see. `answer` is for the grader alone, as JSON values."""

    task: Task
    answer: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Grade:
    """What an attempt is worth. `score` is finite; where there is a best attempt it is worth 1.

    Raises EnvironmentFailure for a score that is no finite number.
    """

    score: float
    is_success: bool
    details: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        if not math.isfinite(self.score):
            raise EnvironmentFailure(f"the grader gave the score {self.score}: it must be a finite number")


class Session(ABC):
    """One attempt at one task: `messages` open it, `reply` takes what the agent answers."""

    messages: tuple[Message, ...]

    @abstractmethod
    def reply(self, message: Message) -> tuple[Message, ...] | None:
        """Take one assistant message; return the messages that follow it, or None when the attempt is over."""


class SingleTurn(Session):
    """A question, and an answer that ends the attempt."""

    def __init__(self, query: str, system: str | None = None) -> None:
        opening = () if system is None else ({"role": "system", "content": system},)
        self.messages = (*opening, {"role": "user", "content": query})

    def reply(self, message: Message) -> None:
        return None


class Environment(ABC):
    """`name` is how a user calls it; `digest` changes with everything that decides which tasks there are and what an
    attempt is worth. `max_turns` bounds the agent's answers per attempt, `max_tokens` is enough for each of them.
    `time_limit_s` is what any one call may take where the environment runs in a process of its own.
    """

    name: str
    description: str = ""
    digest: str
    tools: tuple[ToolSpec, ...] = ()
    max_turns: int = 1
    max_tokens: int = 256
    time_limit_s: float = TIME_LIMIT_S

    @abstractmethod
    def tasks(self, split: Split, seed: int = 0) -> Iterator[EnvironmentTask]:
        """Every task of a split once, in an order fixed by `seed`; without end where tasks are made on demand."""

    def open(self, task: EnvironmentTask) -> Session:
        """A new attempt at a task."""
        return SingleTurn(task.task.main_query)

    @abstractmethod
    def grade(self, task: EnvironmentTask, transcript: Transcript) -> Grade:
        """What the attempt is worth, by task and transcript alone. Raises EnvironmentFailure if the grader fails."""

    def solution(self, task: EnvironmentTask) -> str | None:
        """A reply that the grader must find perfect; None where none is known."""
        return None

    def close(self) -> None:
        """Give back what it holds; most hold nothing. Nothing may be asked of it afterwards. Idempotent."""
        return


class DrivenEnvironment(Environment):
    """An environment with an agent of its own, which it drives and judges itself: there are no sessions, and no grades
    but those of its own attempts."""

    @abstractmethod
    def run(
        self, task: EnvironmentTask, base_url: str, api_key: str, model: str, max_tokens: int
    ) -> tuple[Transcript, Grade]:
        """One whole attempt at a task, with the model at an OpenAI-compatible address. May be called from many threads.

        Raises EnvironmentFailure for an attempt that brought no grade.
        """

    @abstractmethod
    def interrupt(self) -> None:
        """End the attempts under way, which then fail. Others may follow."""

    def open(self, task: EnvironmentTask) -> Session:
        raise EnvironmentInvalid(self.refusal("sessions"), param="env")

    def grade(self, task: EnvironmentTask, transcript: Transcript) -> Grade:
        raise EnvironmentInvalid(self.refusal("grades of other attempts"), param="env")

    def refusal(self, what: str) -> str:
        return f"{self.name} has an agent of its own and no {what}"


def final_reply(transcript: Transcript) -> str:
    """The text of the last assistant message without blanks around it; empty if there is none."""
    for message in reversed(transcript):
        if message.get("role") == "assistant":
            content = message.get("content")
            return content.strip() if isinstance(content, str) else ""
    return ""
