"""What a program's process and its driver say to each other: one JSON object per line, both ways.

Place in the flow: host.py is the program's end, on standard input and output; process.py is the driver's. Each call has
an `id`; many are under way at once. The program is given what an agent needs for its attempt and nothing else: no
answer, no token but the key of the episode, no way to the environment.

    driver -> program    Call         run the agent, the reward or the schedule
    program -> driver    Reply        the agent answers its session
    driver -> program    Following    what follows that answer, or None when the attempt is over
    program -> driver    Result       what the function returned, or a Failure
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict


class Line(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Ready(Line):
    """The first line of a program: which functions it has, or why it is refused."""

    functions: list[str] = []
    refusal: str | None = None


class TaskLine(Line):
    """A task as a program sees it."""

    main_query: str
    task_id: str
    metadata: dict[str, Any]
    data_source: str


class KeyLine(Line):
    """One role's key to its model, and the name of that model. Where there are no roles the role is ""."""

    role: str
    api_key: str
    name: str


class ModelLine(Line):
    """`path` leads to the models on the server that the program reaches, where each key opens its own."""

    path: str
    keys: list[KeyLine]
    max_tokens: int


class Call(Line):
    """`function` is agent (with task, model, messages, tools), reward (task, messages, grade) or schedule (tasks,
    progress)."""

    id: int
    function: Literal["agent", "reward", "schedule"]
    task: TaskLine | None = None
    model: ModelLine | None = None
    messages: list[dict[str, Any]] = []
    tools: list[dict[str, Any]] = []
    grade: dict[str, Any] | None = None
    tasks: list[TaskLine] = []
    progress: float = 0.0


class Failure(Line):
    code: str
    message: str


class Following(Line):
    """To the agent of call `id`: what follows its last answer, or why that answer is refused."""

    id: int
    messages: list[dict[str, Any]] | None = None
    is_over: bool = False
    failure: Failure | None = None


class FromProgram(Line):
    """`reply` is an answer of call `id` to its session; else the call is over, with `result` or `failure`."""

    id: int
    reply: dict[str, Any] | None = None
    result: Any = None
    failure: Failure | None = None
