"""The interface of an environment: tasks in three disjoint splits, sessions, and a grader."""

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
"""All messages of one attempt in order, including the opening ones."""


@dataclass(frozen=True, slots=True)
class EnvironmentTask:
    """One task and its answer.

    `task` is the public part, which a program may see. `answer` consists of JSON values and is for the grader alone.
    """

    task: Task
    answer: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Grade:
    """The grade of one attempt.

    `score` is 1 for a perfect attempt, where an attempt can be perfect. Raises EnvironmentFailure for a score that is
    not a finite number.
    """

    score: float
    is_success: bool
    details: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        if not math.isfinite(self.score):
            raise EnvironmentFailure(f"the grader returned the score {self.score}: it must be a finite number")


class Session(ABC):
    """One attempt at one task: `messages` open it, and `reply` takes the agent's answers."""

    messages: tuple[Message, ...]

    @abstractmethod
    def reply(self, message: Message) -> tuple[Message, ...] | None:
        """Take one assistant message and return the messages that follow it, or None when the attempt is over."""


class SingleTurnSession(Session):
    """A session with one question, whose answer ends the attempt."""

    def __init__(self, query: str, system: str | None = None) -> None:
        opening = () if system is None else ({"role": "system", "content": system},)
        self.messages = (*opening, {"role": "user", "content": query})

    def reply(self, message: Message) -> None:
        return None


class Environment(ABC):
    """A source of tasks, with the grader for attempts at them.

    `name` is the name that a user calls it by. `digest` changes with everything that affects tasks or grades.
    `max_turns` bounds the agent's answers per attempt, and `max_tokens` is enough for each answer. `time_limit_s`
    bounds each call, in seconds, if the environment runs in its own process.
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
        """Yield each task of a split once, in an order fixed by `seed`.

        The stream may be endless if the environment makes tasks on demand.
        """

    def open(self, task: EnvironmentTask) -> Session:
        """Open a new attempt at a task."""
        return SingleTurnSession(task.task.main_query)

    @abstractmethod
    def grade(self, task: EnvironmentTask, transcript: Transcript) -> Grade:
        """Return the grade of an attempt, which depends on the task and the transcript alone.

        Raises EnvironmentFailure if the grader fails.
        """

    def solution(self, task: EnvironmentTask) -> str | None:
        """Return a reply that the grader must find perfect, or None if none is known."""
        return None

    def close(self) -> None:
        """Release the environment's resources, if it has any.

        Idempotent. No other method may be called afterwards.
        """
        return


class DrivenEnvironment(Environment):
    """An environment that runs its own agent and grades it.

    It has no sessions, and it cannot grade attempts of other agents.
    """

    @abstractmethod
    def run(
        self, task: EnvironmentTask, base_url: str, api_key: str, model: str, max_tokens: int
    ) -> tuple[Transcript, Grade]:
        """Run one whole attempt with the model at an OpenAI-compatible address, and return transcript and grade.

        Many threads may call this at once. Raises EnvironmentFailure for an attempt that ended without a grade.
        """

    @abstractmethod
    def interrupt(self) -> None:
        """Stop the running attempts, which then fail.

        Other attempts may follow.
        """

    def open(self, task: EnvironmentTask) -> Session:
        raise EnvironmentInvalid(self.refusal("sessions"), param="env")

    def grade(self, task: EnvironmentTask, transcript: Transcript) -> Grade:
        raise EnvironmentInvalid(self.refusal("grades for other agents"), param="env")

    def refusal(self, what: str) -> str:
        return f"{self.name} runs its own agent and has no {what}"


def final_reply(transcript: Transcript) -> str:
    """Return the stripped text of the last assistant message, or an empty string if there is none."""
    for message in reversed(transcript):
        if message.get("role") == "assistant":
            content = message.get("content")
            return content.strip() if isinstance(content, str) else ""
    return ""
