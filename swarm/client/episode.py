"""What both clients share besides their calls: how a client is described, and an episode inside a `with` block.

Place in the flow: below client.py and async_client.py. Knows nothing of I/O.
"""

from __future__ import annotations

import logging
import os
import re
import socket
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

import httpx

from swarm.client.credentials import Credentials
from swarm.client.exchange import Server
from swarm.client.leases import Leases
from swarm.config import complete_address
from swarm.errors import BadRequest, EpisodeEnded, SwarmError
from swarm.schemas import EndEpisodeResponse
from swarm.types import DEFAULT_DATA_SOURCE, Task, WorkflowOutput

logger = logging.getLogger(__name__)

DEFAULT_TIMEOUT_S = 30.0
# Longer than a training step of a small model; whoever trains a large one knows its step time and sets it.
DEFAULT_WAIT_S = 600.0
# A result is the fruit of all the work of its episode: a server that restarts is waited for.
DEFAULT_END_WAIT_S = 120.0


@dataclass(slots=True)
class OpenEpisode:
    """A begun episode inside `with client.open_episode(task)`. Set `output` to have it ended with that result.

    `receipt` says what became of it, once the block is left.
    """

    task: Task
    episode_id: str
    credentials: Credentials
    output: WorkflowOutput | None = None
    receipt: EndEpisodeResponse | None = None


class Abort(Protocol):
    """Gives an episode up; with `final` no other attempt follows."""

    def __call__(self, episode_uuid: str, reason: str, *, final: bool) -> object: ...


class Attempt:
    """The episodes begun inside one call of a user's function, so that what it leaves behind can be aborted.

    `task` is what the function was called with, if that is a Task: episodes that name no task are of this one.
    """

    def __init__(self, task: Task | None = None) -> None:
        self.task = task
        self._begun: list[tuple[Leases, str, Abort]] = []
        self._settled: list[Leases] = []
        self._is_over = False

    def add(self, leases: Leases, episode_id: str, abort: Abort) -> None:
        """Raises EpisodeEnded, having aborted it, for an episode that was begun too late."""
        self._begun.append((leases, episode_id, abort))
        if self._is_over:
            self.abort_rest("client_interrupted")
            raise EpisodeEnded(f"episode {episode_id} was aborted: the run it belongs to was interrupted")

    def note_end(self, leases: Leases) -> None:
        """An episode was ended with a result, at the server that `leases` are of."""
        self._settled.append(leases)

    def abort_rest(self, reason: str, *, is_final: bool = False) -> None:
        """Abort those that were neither ended nor aborted; later ones are not begun.

        With `is_final` the attempt will not be made again. Said with the abort, and not after it, that keeps the place
        in the group from going to another task first.
        """
        self._is_over = True
        final = self._unsettled() if is_final else []
        for begun in list(self._begun):
            leases, episode_id, abort = begun
            if not leases.holds(episode_id):
                continue
            try:
                abort(episode_id, reason, final=begun in final)
            except SwarmError as failure:
                log_failed_abort(episode_id, failure)
            else:
                if begun in final:
                    self._settled.append(leases)

    def give_up(self, reason: str) -> None:
        """Tell each server at which nothing was ended that this attempt will not be made again: the group of its task
        then does not wait for it."""
        for leases, episode_id, abort in self._unsettled():
            if not leases.holds(episode_id):
                # A server that is not told waits until the time of the group is over.
                with suppress(SwarmError):
                    abort(episode_id, reason, final=True)

    def _unsettled(self) -> list[tuple[Leases, str, Abort]]:
        """The latest episode at each server that has not heard yet what became of this attempt."""
        latest = {id(begun[0]): begun for begun in self._begun}
        return [begun for begun in latest.values() if not any(begun[0] is each for each in self._settled)]


current_attempt: ContextVar[Attempt | None] = ContextVar("current_attempt", default=None)
"""Set by the runner around each call of a user's function, read by begin_episode."""


def name_task(task_id: str | None, data_source: str | None) -> tuple[str | None, str]:
    """Task and data source of an episode: as given, else those of the task that the runner is at."""
    attempt = current_attempt.get()
    task = None if attempt is None else attempt.task
    if task is None:
        return task_id, data_source or DEFAULT_DATA_SOURCE
    if task_id is None:
        task_id = task.task_id
    return task_id, data_source or task.data_source


def describe(url: str, token: str | None, timeout_s: float) -> Server:
    """Raises BadRequest for a malformed url or timeout."""
    url = complete_address(url)
    parsed = httpx.URL(url)
    if parsed.scheme not in {"http", "https"} or not parsed.host:
        raise BadRequest(f"{url!r} is not the address of a server: write it like http://127.0.0.1:10086", param="url")
    if not timeout_s > 0:
        raise BadRequest(f"timeout must be positive, got {timeout_s}", param="timeout")
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    return Server(url.rstrip("/"), headers, timeout_s)


def default_client_id() -> str:
    """Host and process, in the letters that the server takes."""
    return re.sub(r"[^\w.:/@+-]", "-", f"{socket.gethostname()}-{os.getpid()}", flags=re.ASCII)[:200]


def abort_reason(error: BaseException) -> str:
    return f"client_error:{type(error).__name__}"[:200]


def log_failed_abort(episode_id: str, failure: SwarmError) -> None:
    logger.warning("episode %s was not aborted (%s): its lease or idle timeout ends it", episode_id, failure.message)
