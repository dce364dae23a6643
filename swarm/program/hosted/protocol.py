"""The protocol between a program's process and its driver: one JSON object per line, in both directions.

Each call has an `id`, and many calls run at once. The program gets only what an agent needs for its attempt.

    program -> driver    ReadyLine      its functions, once, as the first line
    driver -> program    CallLine       run the agent, the reward or the schedule
    program -> driver    FromProgram    with `reply`: the agent answers its session
    driver -> program    FollowingLine  the messages that follow that answer, or that the attempt is over
    program -> driver    FromProgram    with `result` or `failure`: the end of the call
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict


class Line(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ReadyLine(Line):
    """The first line of a program: the functions that it has, or the reason why it is refused."""

    functions: list[str] = []
    refusal: str | None = None


class TaskLine(Line):
    """A task in the form that a program sees."""

    main_query: str
    task_id: str
    metadata: dict[str, Any]
    data_source: str


class KeyLine(Line):
    """The key of one role to its model, and the name of that model. In a run without roles the role is ""."""

    role: str
    api_key: str
    name: str


class ModelLine(Line):
    """The models of an attempt. `path` is the path of their API on the server, where each key selects its own model."""

    path: str
    keys: list[KeyLine]
    max_tokens: int


class CallLine(Line):
    """A call of one function of the program.

    The agent gets task, model, messages and tools. The reward gets task, messages and grade. The schedule gets tasks
    and progress.
    """

    id: int
    function: Literal["agent", "reward", "schedule"]
    task: TaskLine | None = None
    model: ModelLine | None = None
    messages: list[dict[str, Any]] = []
    tools: list[dict[str, Any]] = []
    grade: dict[str, Any] | None = None
    tasks: list[TaskLine] = []
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
