"""The protocol of an environment server: its requests and answers, as JSON over HTTP/1.1 on a Unix socket."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from swarm.environments.base import Grade
from swarm.tasks.base import Split
from swarm.types import Task

DIGEST_HEADER = "environment-digest"
MAX_PAGE = 1000


class Message(BaseModel):
    """A request or an answer.

        GET  /v1/environment                                     -> Description
        GET  /v1/tasks?split=train&seed=0&start=0&count=100      -> TaskPage
        POST /v1/messages    AttemptReplies                      -> Following
        POST /v1/grades      Graded                              -> GradeAnswer
        POST /v1/solutions   Reference                           -> Solution       (evaluator's socket only)

    A failure has status 400 or above and the body {"error": {"code", "message"}}, with the codes of swarm/errors.py.
    Every request but the first carries the digest of its environment in the header `environment-digest`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)


class Description(Message):
    """The environment itself.

    `max_turns` bounds the answers of an attempt, and `max_tokens` is enough for each of them. `time_limit_s` bounds
    each call of its code, in seconds.
    """

    name: str
    description: str
    digest: str
    tools: list[dict[str, Any]]
    max_turns: int
    max_tokens: int
    time_limit_s: float


class Reference(Message):
    """A reference to task number `number` of a split, in the order that `seed` gives.

    `task_id` proves that both sides mean the same task.
    """

    split: Split
    seed: int
    number: int = Field(ge=0)
    task_id: str


class TaskPage(Message):
    """The public parts of tasks `start` to `start + len(tasks)` of a split; `is_end` says that there are no more."""

    tasks: list[Task]
    is_end: bool


class AttemptReplies(Message):
    """An attempt so far: all answers of the agent in order, or none at its beginning.

    `attempt` is a text that identifies the attempt. A restarted environment server replays the answers.
    """

    attempt: str
    task: Reference
    replies: list[dict[str, Any]]


class Following(Message):
    """The messages after the last answer, or None when the attempt is over.

    Before the first answer, these are the opening messages.
    """

    messages: list[dict[str, Any]] | None


class Graded(Message):
    task: Reference
    transcript: list[dict[str, Any]]


class GradeAnswer(Message):
    grade: Grade


class Solution(Message):
    reply: str | None


class Failure(Message):
    code: str
    message: str
