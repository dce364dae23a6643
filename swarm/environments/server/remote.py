"""An environment that lives in another process: the same contract, each call a request on its socket.

Place in the flow: programs and the evaluator hold one. A call that meets a server in its death waits until it has been
started again, and is made again: all calls may be repeated. This module starts nothing.
"""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlencode

from pydantic import BaseModel, ValidationError

from swarm.environments.base import Environment, EnvironmentTask, Grade, Session, Transcript
from swarm.environments.server.protocol import (
    DIGEST_HEADER,
    Description,
    Following,
    GradeAnswer,
    Graded,
    Reference,
    Solution,
    TaskPage,
    Turn,
)
from swarm.errors import EnvironmentFailure, error_class
from swarm.tasks.base import Split
from swarm.types import Message, Task

FIRST_PAGE = 32
PAGE = 256
ANSWER_TIMEOUT_S = 3600.0
"""Longer than any time limit of a server: what takes too long is for the server to end."""
GONE_AFTER_S = 60.0
RETRY_S = 0.1

Answer = TypeVar("Answer", bound=BaseModel)


class RemoteEnvironment(Environment):
    """`socket_path` is one of the sockets of an environment server."""

    def __init__(self, socket_path: Path) -> None:
        """Raises EnvironmentFailure if nobody answers there."""
        self._path = socket_path
        self._lock = threading.Lock()
        self._idle: list[_UnixConnection] = []
        self.digest = ""
        described = self._ask("GET", "/v1/environment", None, Description)
        self.name, self.description, self.digest = described.name, described.description, described.digest
        self.tools = tuple(described.tools)
        self.max_turns, self.max_tokens = described.max_turns, described.max_tokens

    def __enter__(self) -> RemoteEnvironment:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; a later call opens one again."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def tasks(self, split: Split, seed: int = 0) -> Iterator[EnvironmentTask]:
        start, count = 0, FIRST_PAGE
        while True:
            query = urlencode({"split": split.value, "seed": seed, "start": start, "count": count})
            page = self._ask("GET", f"/v1/tasks?{query}", None, TaskPage)
            for number, item in enumerate(page.tasks, start):
                task = Task(item.main_query, item.task_id, item.metadata, data_source=item.data_source)
                yield EnvironmentTask(task, {"split": split.value, "seed": seed, "number": number})
            if page.is_end:
                return
            start, count = start + count, PAGE

    def open(self, task: EnvironmentTask) -> Session:
        return RemoteSession(self, _reference(task))

    def grade(self, task: EnvironmentTask, transcript: Transcript) -> Grade:
        graded = Graded(task=_reference(task), transcript=[dict(message) for message in transcript])
        answer = self._ask("POST", "/v1/grades", graded, GradeAnswer)
        return Grade(answer.score, answer.is_success, answer.details)

    def solution(self, task: EnvironmentTask) -> str | None:
        """Raises Forbidden on the socket of programs."""
        return self._ask("POST", "/v1/solutions", _reference(task), Solution).reply

    def follow(self, turn: Turn) -> tuple[Message, ...] | None:
        messages = self._ask("POST", "/v1/messages", turn, Following).messages
        return None if messages is None else tuple(messages)

    def _ask(self, method: str, path: str, request: BaseModel | None, kind: type[Answer]) -> Answer:
        body = None if request is None else request.model_dump_json().encode()
        headers = {"content-type": "application/json"}
        if self.digest:
            headers[DIGEST_HEADER] = self.digest
        deadline = time.monotonic() + GONE_AFTER_S
        while True:
            try:
                status, answer = self._exchange(method, path, body, headers)
                break
            except (OSError, http.client.HTTPException) as error:
                # The others lead to the same process.
                self.close()
                if time.monotonic() > deadline:
                    raise EnvironmentFailure(
                        f"the environment server at {self._path} is gone: {type(error).__name__}: {error}"
                    ) from error
                time.sleep(RETRY_S)
        try:
            if status == http.HTTPStatus.OK:
                return kind.model_validate_json(answer)
            failure = json.loads(answer)["error"]
            raise error_class(failure["code"])(str(failure["message"]))
        except (ValidationError, ValueError, KeyError, TypeError) as error:
            raise EnvironmentFailure(f"the environment server at {self._path} said what nobody understands") from error

    def _exchange(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> tuple[int, bytes]:
        with self._lock:
            connection = self._idle.pop() if self._idle else _UnixConnection(self._path)
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            answer = response.status, response.read()
        except BaseException:
            connection.close()
            raise
        with self._lock:
            self._idle.append(connection)
        return answer


class RemoteSession(Session):
    def __init__(self, environment: RemoteEnvironment, task: Reference) -> None:
        self._environment = environment
        self._turn = Turn(attempt=uuid.uuid4().hex, task=task, replies=[])
        self.messages = environment.follow(self._turn) or ()

    def reply(self, message: Message) -> tuple[Message, ...] | None:
        self._turn = self._turn.model_copy(update={"replies": [*self._turn.replies, dict(message)]})
        return self._environment.follow(self._turn)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=ANSWER_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(ANSWER_TIMEOUT_S)
        self.sock.connect(str(self._path))


def _reference(task: EnvironmentTask) -> Reference:
    return Reference(task_id=task.task.task_id, **task.answer)
