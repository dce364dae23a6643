"""One attempt of an agent at a task: the model that the agent calls, and the session that it answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import httpx
from pydantic import BaseModel, Field, StrictStr, ValidationError

from swarm.environments.base import Environment, EnvironmentTask, Session
from swarm.errors import BadRequest
from swarm.tasks.agent import assistant_message, no_answer
from swarm.types import Message, ToolSpec

HISTORY_FIELDS = ("content", "tool_calls")
"""The fields of a reply that later requests repeat as history."""
MAX_ANSWER_CHARS = 2**20
"""The limit of one answer of an agent, as JSON: more than any model writes, and little enough for any grader."""
MAX_TOOL_CALLS = 128
"""The limit of tool calls in one answer of an agent."""


class Model:
    """The model of one episode: `base_url`, `api_key` and `name` for any SDK, or `chat` without an SDK.

    In a run with several roles it is the model of the first role. `roles` are their names, and `role` returns the model
    of one. In a run with one model `roles` is empty.
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
        # Made once, because a conversation repeats them with every call.
        self._url = httpx.URL(f"{base_url.rstrip('/')}/chat/completions")
        self._headers = httpx.Headers({"Authorization": f"Bearer {api_key}"})

    @property
    def roles(self) -> tuple[str, ...]:
        return tuple(self._by_role)

    def role(self, name: str) -> Model:
        """Return the model of a role. Raises BadRequest, which lists the roles, for a name that is none."""
        if name not in self._by_role:
            roles = f"the roles are {', '.join(self._by_role)}" if self._by_role else "this run has one model, no roles"
            raise BadRequest(f"there is no role {name!r}: {roles}; a role is served with --server {name}=URL")
        return self._by_role[name]

    def chat(self, messages: Iterable[Message], *, tools: Sequence[ToolSpec] = (), **options: Any) -> Message:
        """Return the assistant message that continues a conversation. `options` are further fields of the request.

        Raises ServerUnreachable if no answer comes, or the error that the server names.
        """
        body: dict[str, Any] = {"model": self.name, "messages": list(messages), "max_tokens": self.max_tokens}
        if tools:
            body["tools"] = list(tools)
        try:
            response = self._http.post(self._url, headers=self._headers, json={**body, **options})
        except httpx.TransportError as error:
            raise no_answer(str(self._url), error) from error
        return assistant_message(response)


@dataclass(frozen=True, slots=True)
class ModelKey:
    """The address, the key and the name of the model of one role, for one attempt.

    A reply has at most `max_tokens` tokens, unless the agent asks for another limit.
    """

    base_url: str
    api_key: str
    name: str
    max_tokens: int


def model_of(keys: Mapping[str, ModelKey], http: httpx.Client) -> Model:
    """Return the model of an attempt, with the models of all its roles. Without roles the only key of `keys` is ""."""
    by_role: dict[str, Model] = {}
    models = {
        role: Model(key.base_url, key.api_key, key.name, key.max_tokens, http, by_role) for role, key in keys.items()
    }
    by_role.update({role: model for role, model in models.items() if role})
    return next(iter(models.values()))


class RecordedSession:
    """A session that records its messages: an agent's view of an attempt, whose `transcript` the grader gets.

    `failure` is the error that the environment raised on an answer, also if the agent has caught it.
    """

    def __init__(self, session: Session, tools: Sequence[ToolSpec], max_turns: float) -> None:
        self.tools = tuple(tools)
        self.transcript: list[Message] = list(session.messages)
        self.is_over = False
        self.turns = 0
        self.failure: Exception | None = None
        self._session = session
        self._max_turns = max_turns

    @property
    def messages(self) -> tuple[Message, ...]:
        """All messages so far, the opening messages first."""
        return tuple(self.transcript)

    def reply(self, message: Message | str) -> tuple[Message, ...] | None:
        """Give an answer; return the messages that follow, or None when the attempt is over.

        Raises BadRequest for an answer after that.
        """
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
    """Return an agent's message for the transcript, with the fields of an assistant message and no others.

    Raises BadRequest if it is no assistant message, because a malformed one could break the environment.
    """
    fields: Mapping[str, Any] = {"content": message} if isinstance(message, str) else message
    if not hasattr(fields, "get"):
        raise BadRequest(f"an agent replies with a text or a message, not with {type(message).__name__}")
    kept = {name: fields[name] for name in HISTORY_FIELDS if fields.get(name)}
    try:
        checked = _Answer.model_validate(kept).model_dump()
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise BadRequest(f"an agent replies with an assistant message: {where}: {first['msg']}") from None
    answer = {"role": "assistant", "content": None, **{name: value for name, value in checked.items() if value}}
    if len(json.dumps(answer)) > MAX_ANSWER_CHARS:
        raise BadRequest(f"the agent's reply is too long: it may have at most {MAX_ANSWER_CHARS} characters as JSON")
    return answer


class _Function(BaseModel):
    name: StrictStr
    arguments: StrictStr


class _ToolCall(BaseModel):
    id: StrictStr
    type: Literal["function"] = "function"
    function: _Function


class _Answer(BaseModel):
    """The content of an assistant message of the OpenAI API."""

    content: StrictStr | None = None
    tool_calls: list[_ToolCall] = Field(default=[], max_length=MAX_TOOL_CALLS)


def open_session(environment: Environment, task: EnvironmentTask) -> RecordedSession:
    return RecordedSession(environment.open(task), environment.tools, environment.max_turns)


class ShownSession(Session):
    """A session whose messages are shown as they come."""

    def __init__(self, session: Session, show: Callable[[Message], None]) -> None:
        self.messages = session.messages
        self._session = session
        self._show = show
        self._show_all(session.messages)

    def reply(self, message: Message) -> tuple[Message, ...] | None:
        self._show(message)
        following = self._session.reply(message)
        self._show_all(following or ())
        return following

    def _show_all(self, messages: tuple[Message, ...]) -> None:
        for message in messages:
            self._show(message)


def open_shown(environment: Environment, task: EnvironmentTask, show: Callable[[Message], None]) -> RecordedSession:
    return RecordedSession(ShownSession(environment.open(task), show), environment.tools, environment.max_turns)
