"""The protocol between a program's process and its driver: one JSON object per line, in both directions."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from swarm.environments.base import Grade
from swarm.program.attempts import ModelKey
from swarm.types import Task


class Line(BaseModel):
    """A line of either side. Each call has an `id`, and many calls run at once.

        program -> driver    ReadyLine      its functions, once, as the first line
        driver -> program    CallLine       run the agent, the reward or the schedule
        program -> driver    FromProgram    with `reply`: the agent answers its session
        driver -> program    FollowingLine  the messages that follow that answer, or that the attempt is over
        program -> driver    FromProgram    with `result` or `failure`: the end of the call

    The program gets only what an agent needs for its attempt.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)


class ReadyLine(Line):
    """The first line of a program: the functions that it has, or the reason why it is refused."""

    functions: list[str] = []
    refusal: str | None = None


class CallLine(Line):
    """A call of one function of the program.

    The agent gets task, keys, messages and tools. The reward gets task, messages and grade. The schedule
    gets tasks and progress. The base URLs of `keys`, by role, are paths on the program's server.
    """

    id: int
    function: Literal["agent", "reward", "schedule"]
    task: Task | None = None
    keys: dict[str, ModelKey] = {}
    messages: list[dict[str, Any]] = []
    tools: list[dict[str, Any]] = []
    grade: Grade | None = None
    tasks: list[Task] = []
    progress: float = 0.0


class FailureLine(Line):
    """The failure of a call. `trace` are the lines of the program that led to it, with their source."""

    code: str
    message: str
    trace: str = ""


class FollowingLine(Line):
    """The answer to a reply of the agent of call `id`: the messages that follow, or the reason of a refusal.

    Without messages the attempt is over.
    """

    id: int
    messages: list[dict[str, Any]] | None = None
    failure: FailureLine | None = None


class FromProgram(Line):
    """A line of call `id`: the agent's `reply` to its session, or the end of the call with `result` or `failure`."""

    id: int
    reply: dict[str, Any] | None = None
    result: Any = None
    failure: FailureLine | None = None
