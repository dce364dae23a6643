"""One attempt of an agent at a task: the model that it may call, and the session that it answers.

Place in the flow: training.py begins an episode for each attempt and ends it with what comes out here. This module
knows nothing of batches or training.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import httpx
from pydantic import BaseModel, Field, StrictStr, ValidationError

from swarm.environments.base import Environment, EnvironmentTask, Session
from swarm.errors import BadRequest
from swarm.tasks.agent import assistant_message, no_answer
from swarm.types import Message, ToolSpec

HISTORY_FIELDS = ("content", "tool_calls")
"""What of a reply stands in the history of later requests."""
MAX_ANSWER_CHARS = 2**20
"""Of one answer of an agent, as JSON: more than any model writes, and little enough for any grader."""
MAX_TOOL_CALLS = 128
"""In one answer of an agent."""
CALL_TIMEOUT_S = 180.0
"""A server may hold a call while its weights change."""


class Model:
    """The model of one episode: `base_url`, `api_key` and `name` for any SDK, `chat` for an agent that needs none.

    Where a run has several roles this is the model of the first, `role` gives that of each, and `roles` are their
    names; else `roles` is empty.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str,
        name: str,
        max_tokens: int,
        http: httpx.Client,
        by_role: Mapping[str, Model] | None = None,
    ) -> None:
        self.base_url = base_url
        self.api_key = api_key
        self.name = name
        self.max_tokens = max_tokens
        self._http = http
        self._by_role: Mapping[str, Model] = {} if by_role is None else by_role

    @property
    def roles(self) -> tuple[str, ...]:
        return tuple(self._by_role)

    def role(self, name: str) -> Model:
        """The model of a role. Raises BadRequest, naming the roles there are, for another one."""
        if name not in self._by_role:
            roles = f"the roles are {', '.join(self._by_role)}" if self._by_role else "this run has one model, no roles"
            raise BadRequest(f"there is no role {name!r}: {roles}; a role is served with --server {name}=URL")
        return self._by_role[name]

    def chat(self, messages: Iterable[Message], *, tools: Sequence[ToolSpec] = (), **options: Any) -> Message:
        """The assistant message to a conversation. `options` are further fields of the request.

        Raises ServerUnreachable if no answer comes, or the domain error that the server names.
        """
        body: dict[str, Any] = {"model": self.name, "messages": list(messages), "max_tokens": self.max_tokens}
        if tools:
            body["tools"] = list(tools)
        url = f"{self.base_url.rstrip('/')}/chat/completions"
        headers = {"Authorization": f"Bearer {self.api_key}"}
        try:
            response = self._http.post(url, json={**body, **options}, headers=headers)
        except httpx.TransportError as error:
            raise no_answer(url, error) from error
        return assistant_message(response)


@dataclass(frozen=True, slots=True)
class ModelKey:
    """What opens the model of one role in one attempt."""

    base_url: str
    api_key: str
    name: str


def model_of(keys: Mapping[str, ModelKey], max_tokens: int, http: httpx.Client) -> Model:
    """The model of an attempt, with those of all its roles. One model without a role has the name "" here."""
    by_role: dict[str, Model] = {}
    models = {role: Model(key.base_url, key.api_key, key.name, max_tokens, http, by_role) for role, key in keys.items()}
    by_role.update({role: model for role, model in models.items() if role})
    return next(iter(models.values()))


class AgentSession(Protocol):
    """What an agent sees of an attempt: what was said, what may be called, and how to answer."""

    tools: tuple[ToolSpec, ...]
    transcript: list[Message]
    is_over: bool
    turns: int

    @property
    def messages(self) -> tuple[Message, ...]:
        """What has been said so far, the opening messages first."""
        ...

    def reply(self, message: Message | str) -> tuple[Message, ...] | None:
        """Answer; returns the messages that follow, or None when the attempt is over. Raises BadRequest after that."""
        ...


class RecordedSession:
    """A session that keeps what was said: `transcript` is what a grader sees.

    `failure` is what the environment raised instead of taking an answer, whatever the agent made of it.
    """

    def __init__(self, session: Session, tools: Sequence[ToolSpec], max_turns: int) -> None:
        self.tools = tuple(tools)
        self.transcript: list[Message] = list(session.messages)
        self.is_over = False
        self.turns = 0
        self.failure: Exception | None = None
        self._session = session
        self._max_turns = max_turns

    @property
    def messages(self) -> tuple[Message, ...]:
        return tuple(self.transcript)

    def reply(self, message: Message | str) -> tuple[Message, ...] | None:
        if self.is_over:
            raise BadRequest("this attempt is over: an agent replies to its session until reply() returns None")
        answer = as_answer(message)
        self.transcript.append(answer)
        self.turns += 1
        try:
            following = self._session.reply(answer)
        except Exception as error:
            self.failure = error
            raise
        self.is_over = following is None or self.turns >= self._max_turns
        self.transcript.extend(following or ())
        return None if self.is_over else following


def as_answer(message: Message | str) -> dict[str, Any]:
    """What of an agent's message goes into the transcript: the fields of an assistant message and no others.

    Raises BadRequest for what is no assistant message: a garbled one could break the environment that reads it.
    """
    said: Mapping[str, Any] = {"content": message} if isinstance(message, str) else message
    if not hasattr(said, "get"):
        raise BadRequest(f"an agent replies with a text or a message, not with {type(message).__name__}")
    kept = {name: said[name] for name in HISTORY_FIELDS if said.get(name)}
    try:
        checked = _Answer.model_validate(kept).model_dump()
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise BadRequest(f"an agent replies with an assistant message: {where}: {first['msg']}") from None
    answer = {"role": "assistant", "content": None, **{name: value for name, value in checked.items() if value}}
    if len(json.dumps(answer)) > MAX_ANSWER_CHARS:
        raise BadRequest(f"an agent's reply has at most {MAX_ANSWER_CHARS} characters")
    return answer


class _Function(BaseModel):
    name: StrictStr
    arguments: StrictStr


class _ToolCall(BaseModel):
    id: StrictStr
    type: Literal["function"] = "function"
    function: _Function


class _Answer(BaseModel):
    """The form of an assistant message in the OpenAI shape."""

    content: StrictStr | None = None
    tool_calls: list[_ToolCall] = Field(default=[], max_length=MAX_TOOL_CALLS)


def open_session(environment: Environment, task: EnvironmentTask) -> RecordedSession:
    return RecordedSession(environment.open(task), environment.tools, environment.max_turns)
