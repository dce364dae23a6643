"""What crosses the socket of an environment server, as pydantic models: the whole protocol.

Place in the flow: service.py answers these, remote.py asks them. All is JSON over HTTP/1.1 on a unix socket.

    GET  /v1/environment                                     -> Description
    GET  /v1/tasks?split=train&seed=0&start=0&count=100      -> TaskPage
    POST /v1/messages    Turn                                -> Following
    POST /v1/grades      Graded                              -> GradeAnswer
    POST /v1/solutions   Reference                           -> Solution       (evaluator's socket only)

A failure has status 400 or above and the body {"error": {"code", "message"}}; the codes are those of swarm/errors.py.
Every request but the first names the digest of the environment it means in the header `environment-digest`.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from swarm.tasks.base import Split

DIGEST_HEADER = "environment-digest"
MAX_PAGE = 1000


class Message(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Description(Message):
    """The environment itself. `max_turns` bounds the answers of an attempt, `max_tokens` is enough for each, and
    `time_limit_s` is what its code may take for one call."""

    name: str
    description: str
    digest: str
    tools: list[dict[str, Any]]
    max_turns: int
    max_tokens: int
    time_limit_s: float


class Reference(Message):
    """Which task: number `number` of the order that `seed` gives to a split. `task_id` proves that both sides agree."""

    split: Split
    seed: int
    number: int = Field(ge=0)
    task_id: str


class PublicTask(Message):
    """What a program may see of a task."""

    task_id: str
    main_query: str
    metadata: dict[str, Any]
    data_source: str


class TaskPage(Message):
    """Tasks `start` to `start + len(tasks)` of a split; `is_end` if there are no more."""

    tasks: list[PublicTask]
    is_end: bool


class Turn(Message):
    """An attempt so far: every answer that the agent gave, in order. With none, the attempt begins.

    `attempt` is any text that nobody else uses. An environment server that was restarted goes through the answers anew.
    """

    attempt: str
    task: Reference
    replies: list[dict[str, Any]]


class Following(Message):
    """The messages after the last answer (the opening ones if there was none), or None when the attempt is over."""

    messages: list[dict[str, Any]] | None


class Graded(Message):
    task: Reference
    transcript: list[dict[str, Any]]


class GradeAnswer(Message):
    score: float
    is_success: bool
    details: dict[str, Any]


class Solution(Message):
    reply: str | None


class Failure(Message):
    code: str
    message: str
