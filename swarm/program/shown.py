"""A session whose messages are shown as they come."""

from __future__ import annotations

from collections.abc import Callable

from swarm.environments import Environment, EnvironmentTask, Session
from swarm.program.attempts import RecordedSession
from swarm.types import Message

Show = Callable[[Message], None]


class ShownSession(Session):
    def __init__(self, session: Session, show: Show) -> None:
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


def open_shown(environment: Environment, task: EnvironmentTask, show: Show) -> RecordedSession:
    return RecordedSession(ShownSession(environment.open(task), show), environment.tools, environment.max_turns)
