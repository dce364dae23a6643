"""What both clients share besides their calls: credentials, how a client is described, an episode in a `with` block.

Place in the flow: below client.py and async_client.py. The attempt of the runner learns here which episodes a function
has begun. This module knows nothing of I/O.
"""

from __future__ import annotations

import logging
import os
import re
import socket
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Protocol, TypedDict
from urllib.parse import urlsplit, urlunsplit

import httpx

from swarm.client.heartbeat import Leases
from swarm.client.plans.exchange import Server
from swarm.config import complete_address
from swarm.errors import BadRequest, EpisodeEnded, SwarmError
from swarm.schemas import LEASE_HEADER, BeginEpisodeResponse, EndEpisodeResponse
from swarm.types import DEFAULT_DATA_SOURCE, Task, WorkflowOutput

_ANTHROPIC_MODELS = (
    "ANTHROPIC_MODEL",
    "ANTHROPIC_DEFAULT_OPUS_MODEL",
    "ANTHROPIC_DEFAULT_SONNET_MODEL",
    "ANTHROPIC_DEFAULT_HAIKU_MODEL",
)
"""By which Claude Code chooses models for its purposes."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """`base_url` ends in /v1 and `api_key` opens nothing but this episode. `deadline_s` is its longest life in seconds.

    `weight_version` is the one served when the episode began. One that `is_greedy` is sampled at temperature 0,
    whatever its agent asks for.
    """

    episode_id: str
    base_url: str
    api_key: str = field(repr=False)
    model: str
    weight_version: int
    deadline_s: float
    is_greedy: bool = False

    @property
    def path_base_url(self) -> str:
        """A base URL that holds the key, for what can be given no key of its own. Libraries that log URLs log it too:
        where a key can be given, use `base_url` and `api_key`."""
        return f"{self.base_url.removesuffix('/v1')}/e/{self.api_key}/v1"

    def env(self) -> dict[str, str]:
        """Environment variables by which OpenAI and Anthropic SDKs in a child process find the model unchanged."""
        return {
            "OPENAI_BASE_URL": self.base_url,
            "OPENAI_API_BASE": self.base_url,
            "OPENAI_API_KEY": self.api_key,
            "ANTHROPIC_BASE_URL": self.base_url.removesuffix("/v1"),
            "ANTHROPIC_AUTH_TOKEN": self.api_key,
            **dict.fromkeys(_ANTHROPIC_MODELS, self.model),
        }


def credentials_of(begun: BeginEpisodeResponse, server_url: str) -> Credentials:
    """The server's answer under the address that this client uses, so that a tunnel or proxy stays in between."""
    return Credentials(
        episode_id=begun.episode_id,
        base_url=_through(server_url, begun.base_url),
        api_key=begun.api_key,
        model=begun.model,
        weight_version=begun.weight_version,
        deadline_s=begun.deadline_s,
        is_greedy=begun.is_greedy,
    )


def _through(server_url: str, base_url: str) -> str:
    own, answered = urlsplit(server_url), urlsplit(base_url)
    prefix = own.path.rstrip("/")
    path = answered.path if answered.path.startswith(f"{prefix}/") else prefix + answered.path
    return urlunsplit((own.scheme, own.netloc, path, "", ""))


logger = logging.getLogger(__name__)

DEFAULT_TIMEOUT_S = 30.0
# Longer than a training step of a small model; whoever trains a large one knows its step time and sets it.
DEFAULT_WAIT_S = 600.0
# A result is the fruit of all the work of its episode: a server that restarts is waited for.
DEFAULT_END_WAIT_S = 120.0


class EpisodeSampling(TypedDict, total=False):
    """How the calls of an episode are sampled, and how much it may spend on them; None is the same as left out.

    Calls that name no `seed` are sampled with one that `sampling_seed` and the number of the call give, so that the
    same attempt again gives the same draws; those that name no temperature, at `temperature`. `max_calls` and
    `max_tokens` bound completions and sampled tokens of the whole episode: the server refuses a call beyond with
    AttemptLimit, and cuts the last one where the tokens end.
    """

    sampling_seed: int | None
    temperature: float | None
    max_calls: int | None
    max_tokens: int | None


@dataclass(slots=True)
class OpenEpisode:
    """A begun episode inside `with client.open_episode(task)`. Set `output` to have it ended with that result.

    `receipt` says what became of it, once the block is left; None if it was aborted.
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


class AttemptNotes:
    """Tells the attempt at hand, if there is one, what a client of its thread begins and ends."""

    def begun(self, leases: Leases, episode_id: str, abort: Abort) -> None:
        """Raises EpisodeEnded, having aborted it, for an episode that was begun too late."""
        if (attempt := current_attempt.get()) is not None:
            attempt.add(leases, episode_id, abort)

    def ended(self, leases: Leases) -> None:
        if (attempt := current_attempt.get()) is not None:
            attempt.note_end(leases)


class AsyncAttemptNotes:
    """The same for coroutines, of which the runner knows nothing: it calls functions, and in threads."""

    def begun(self, leases: Leases, episode_id: str, abort: object) -> None:
        return

    def ended(self, leases: Leases) -> None:
        return


def name_task(task_id: str | None, data_source: str | None) -> tuple[str | None, str]:
    """Task and data source of an episode: as given, else those of the task that the runner is at."""
    attempt = current_attempt.get()
    task = None if attempt is None else attempt.task
    if task is None:
        return task_id, data_source or DEFAULT_DATA_SOURCE
    if task_id is None:
        task_id = task.task_id
    return task_id, data_source or task.data_source


def describe(url: str, token: str | None, timeout_s: float, lease: int | None = None) -> Server:
    """Raises BadRequest for a malformed url or timeout."""
    url = complete_address(url)
    parsed = httpx.URL(url)
    if parsed.scheme not in {"http", "https"} or not parsed.host:
        raise BadRequest(f"{url!r} is not the address of a server: write it like http://127.0.0.1:10086", param="url")
    if not timeout_s > 0:
        raise BadRequest(f"timeout must be positive, got {timeout_s}", param="timeout")
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    if lease is not None:
        headers[LEASE_HEADER] = str(lease)
    return Server(url.rstrip("/"), headers, timeout_s)


def default_client_id() -> str:
    """Host and process, in the letters that the server takes."""
    return re.sub(r"[^\w.:/@+-]", "-", f"{socket.gethostname()}-{os.getpid()}", flags=re.ASCII)[:200]


def abort_reason(error: BaseException) -> str:
    return f"client_error:{type(error).__name__}"[:200]


def log_failed_abort(episode_id: str, failure: SwarmError) -> None:
    logger.warning("episode %s was not aborted (%s): its lease or idle timeout ends it", episode_id, failure.message)
