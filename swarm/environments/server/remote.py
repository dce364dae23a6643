"""The client of an environment server: the same interface, with a request on its socket for each call."""

from __future__ import annotations

import http.client
import json
import math
import random
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlencode

from pydantic import BaseModel, ValidationError

from swarm.environments.base import Environment, EnvironmentTask, Grade, Session, Transcript
from swarm.environments.server.protocol import (
    DIGEST_HEADER,
    AttemptReplies,
    Description,
    Following,
    GradeAnswer,
    Graded,
    Reference,
    Solution,
    TaskPage,
)
from swarm.errors import EnvironmentFailure, SandboxUnavailable, SwarmError, error_class
from swarm.tasks.base import Split
from swarm.types import Message

FIRST_PAGE = 32
PAGE = 256
ANSWER_MARGIN_S = 60.0
"""Seconds beyond the time limits for finding a task and for grading it. The server ends a call that takes too long;
this margin is for a server that cannot."""
GONE_AFTER_S = 60.0
RETRY_S = 0.1
MAX_LOSSES = 5
"""Deaths of the server during one call after which the call counts as their cause. Other calls that are lost with it
are repeated after random pauses, so that few of them are lost again."""
GONE_FILE = "gone.txt"
"""File beside the sockets that says why the server is not restarted any more."""

Answer = TypeVar("Answer", bound=BaseModel)


@dataclass(slots=True)
class CallRecord:
    """The failures of one environment's calls.

    `failures` counts those since the last grade. `reason` and `failed_at`, in monotonic seconds, describe the latest.
    """

    failures: int = 0
    reason: str = ""
    failed_at: float = -math.inf


class RemoteEnvironment(Environment):
    """The environment behind one socket of an environment server, for use by many threads."""

    def __init__(self, socket_path: Path) -> None:
        """Ask the server at `socket_path` for the description of its environment.

        Raises EnvironmentFailure if no server answers.
        """
        self._path = socket_path
        self._lock = threading.Lock()
        self._idle: list[_UnixConnection] = []
        self._busy: set[_UnixConnection] = set()
        self._given_up = ""
        self.record = CallRecord()
        self.digest = ""
        described = self._ask("GET", "/v1/environment", None, Description)
        self.name, self.description, self.digest = described.name, described.description, described.digest
        self.tools = tuple(described.tools)
        self.max_turns, self.max_tokens = described.max_turns, described.max_tokens
        self.time_limit_s = described.time_limit_s

    def __enter__(self) -> RemoteEnvironment:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the idle connections; a later call opens a new one."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def give_up(self, reason: str) -> None:
        """Let all running and later calls fail at once with this reason."""
        with self._lock:
            self._given_up = reason
            busy = list(self._busy)
        for connection in busy:
            with suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)

    def tasks(self, split: Split, seed: int = 0) -> Iterator[EnvironmentTask]:
        start, count = 0, FIRST_PAGE
        while True:
            query = urlencode({"split": split.value, "seed": seed, "start": start, "count": count})
            page = self._ask("GET", f"/v1/tasks?{query}", None, TaskPage)
            for number, task in enumerate(page.tasks, start):
                yield EnvironmentTask(task, {"split": split.value, "seed": seed, "number": number})
            if page.is_end:
                return
            start, count = start + count, PAGE

    def open(self, task: EnvironmentTask) -> Session:
        return RemoteSession(self, _reference(task))

    def grade(self, task: EnvironmentTask, transcript: Transcript) -> Grade:
        graded = Graded(task=_reference(task), transcript=[dict(message) for message in transcript])
        return self._ask("POST", "/v1/grades", graded, GradeAnswer).grade

    def solution(self, task: EnvironmentTask) -> str | None:
        """Return a reply that the grader finds perfect, or None if none is known.

        Raises Forbidden on the socket for programs.
        """
        return self._ask("POST", "/v1/solutions", _reference(task), Solution).reply

    def follow(self, turn: AttemptReplies) -> tuple[Message, ...] | None:
        messages = self._ask("POST", "/v1/messages", turn, Following).messages
        return None if messages is None else tuple(messages)

    def _ask(self, method: str, path: str, request: BaseModel | None, kind: type[Answer]) -> Answer:
        try:
            answer = self._understood(*self._exchanged(method, path, request), kind)
        except (EnvironmentFailure, SandboxUnavailable) as error:
            self.record.failures += 1
            self.record.reason, self.record.failed_at = error.message, time.monotonic()
            raise
        if kind is GradeAnswer:
            self.record.failures = 0
        return answer

    def _exchanged(self, method: str, path: str, request: BaseModel | None) -> tuple[int, bytes]:
        """Send a request until it is answered, and return status and body.

        Raises EnvironmentFailure if no answer comes.
        """
        body = None if request is None else request.model_dump_json().encode()
        headers = {"content-type": "application/json"}
        if self.digest:
            headers[DIGEST_HEADER] = self.digest
        deadline, losses = time.monotonic() + GONE_AFTER_S, 0
        while True:
            self._check_given_up()
            begun = time.monotonic()
            try:
                return self._exchange(method, path, body, headers)
            except (OSError, http.client.HTTPException) as error:
                # The idle connections lead to the same dead process.
                self.close()
                self._check_given_up()
                losses += not isinstance(error, ConnectionRefusedError | FileNotFoundError)
                self._check_worth_repeating(path, losses, time.monotonic() - begun, deadline, error)
            time.sleep(RETRY_S + random.uniform(0, RETRY_S * 2**losses if losses else 0))

    def _check_given_up(self) -> None:
        if self._given_up:
            raise EnvironmentFailure(self._given_up)

    def _check_worth_repeating(self, path: str, losses: int, took_s: float, deadline: float, error: Exception) -> None:
        """Raise EnvironmentFailure if a lost call must not be repeated."""
        what, name = path.partition("?")[0].rpartition("/")[2], getattr(self, "name", str(self._path))
        gone = self._path.with_name(GONE_FILE)
        if gone.is_file():
            raise EnvironmentFailure(gone.read_text(encoding="utf-8")) from error
        if took_s >= self.time_limit_s:
            raise EnvironmentFailure(f"{name}: a call for {what} took longer than {self.time_limit_s:g} s") from error
        if losses >= MAX_LOSSES:
            raise EnvironmentFailure(
                f"{name}: its process died {losses} times during the same call for {what}"
            ) from error
        if time.monotonic() > deadline:
            raise EnvironmentFailure(
                f"no environment server answers at {self._path}: {type(error).__name__}: {error}"
            ) from error

    def _understood(self, status: int, answer: bytes, kind: type[Answer]) -> Answer:
        """Return the parsed answer, or raise the error that it reports."""
        try:
            if status == http.HTTPStatus.OK:
                return kind.model_validate_json(answer)
            failure = json.loads(answer)["error"]
            reported: SwarmError = error_class(failure["code"])(str(failure["message"]))
        except (ValidationError, ValueError, KeyError, TypeError) as error:
            raise EnvironmentFailure(f"the environment server at {self._path} sent an invalid answer") from error
        raise reported

    def _exchange(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> tuple[int, bytes]:
        with self._lock:
            timeout_s = 2 * self.time_limit_s + ANSWER_MARGIN_S
            connection = self._idle.pop() if self._idle else _UnixConnection(self._path, timeout_s)
            self._busy.add(connection)
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            answer = response.status, response.read()
        except BaseException:
            with self._lock:
                self._busy.discard(connection)
            connection.close()
            raise
        with self._lock:
            self._busy.discard(connection)
            self._idle.append(connection)
        return answer


class RemoteSession(Session):
    def __init__(self, environment: RemoteEnvironment, task: Reference) -> None:
        self._environment = environment
        self._turn = AttemptReplies(attempt=uuid.uuid4().hex, task=task, replies=[])
        self.messages = environment.follow(self._turn) or ()

    def reply(self, message: Message) -> tuple[Message, ...] | None:
        self._turn = self._turn.model_copy(update={"replies": [*self._turn.replies, dict(message)]})
        return self._environment.follow(self._turn)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def _reference(task: EnvironmentTask) -> Reference:
    return Reference(task_id=task.task.task_id, **task.answer)
