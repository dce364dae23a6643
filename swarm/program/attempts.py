"""One attempt of an agent at a task: the model that it may call, the session that it answers, and the grade.

Place in the flow: training.py begins an episode for each attempt and ends it with what comes out here. This module
knows nothing of batches or training.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import httpx

from swarm.client import Credentials
from swarm.environments import Environment, EnvironmentTask, Session
from swarm.errors import BadRequest
from swarm.tasks.agent import assistant_message, no_answer
from swarm.types import Message, ToolSpec

HISTORY_FIELDS = ("content", "tool_calls")
"""What of a reply stands in the history of later requests."""


class Model:
    """The model of one episode: `base_url`, `api_key` and `name` for any SDK, `chat` for an agent that needs none."""

    def __init__(self, credentials: Credentials, max_tokens: int, http: httpx.Client) -> None:
        self.base_url = credentials.base_url
        self.api_key = credentials.api_key
        self.name = credentials.model
        self._max_tokens = max_tokens
        self._http = http

    def chat(self, messages: Iterable[Message], *, tools: Sequence[ToolSpec] = (), **options: Any) -> Message:
        """The assistant message to a conversation. `options` are further fields of the request.

        Raises ServerUnreachable if no answer comes, or the domain error that the server names.
        """
        body: dict[str, Any] = {"model": self.name, "messages": list(messages), "max_tokens": self._max_tokens}
        if tools:
            body["tools"] = list(tools)
        url = f"{self.base_url.rstrip('/')}/chat/completions"
        headers = {"Authorization": f"Bearer {self.api_key}"}
        try:
            response = self._http.post(url, json={**body, **options}, headers=headers)
        except httpx.TransportError as error:
            raise no_answer(url, error) from error
        return assistant_message(response)


class RecordedSession:
    """A session that keeps what was said: `transcript` is what a grader sees."""

    def __init__(self, session: Session, tools: Sequence[ToolSpec], max_turns: int) -> None:
        self.tools = tuple(tools)
        self.transcript: list[Message] = list(session.messages)
        self.is_over = False
        self.turns = 0
        self._session = session
        self._max_turns = max_turns

    @property
    def messages(self) -> tuple[Message, ...]:
        """What has been said so far, the opening messages first."""
        return tuple(self.transcript)

    def reply(self, message: Message | str) -> tuple[Message, ...] | None:
        """Answer; returns the messages that follow, or None when the attempt is over. Raises BadRequest after that."""
        if self.is_over:
            raise BadRequest("this attempt is over: an agent replies to its session until reply() returns None")
        said = {"content": message} if isinstance(message, str) else message
        kept = {name: said[name] for name in HISTORY_FIELDS if said.get(name)}
        answer: Message = {"role": "assistant", "content": None, **kept}
        self.transcript.append(answer)
        self.turns += 1
        following = self._session.reply(answer)
        self.is_over = following is None or self.turns >= self._max_turns
        self.transcript.extend(following or ())
        return None if self.is_over else following


def open_session(environment: Environment, task: EnvironmentTask) -> RecordedSession:
    return RecordedSession(environment.open(task), environment.tools, environment.max_turns)
