"""The types of an episode on the client side: credentials, sampling limits, the open episode, and the attempt."""

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

from swarm.client.exchange import Server
from swarm.client.heartbeat import Leases
from swarm.config import complete_address
from swarm.errors import BadRequest, EpisodeEnded, FailedEngine, SwarmError
from swarm.schemas import LEASE_HEADER, BeginEpisodeResponse, EndEpisodeResponse
from swarm.types import DEFAULT_DATA_SOURCE, Task, WorkflowOutput

_ANTHROPIC_MODELS = (
    "ANTHROPIC_MODEL",
    "ANTHROPIC_DEFAULT_OPUS_MODEL",
    "ANTHROPIC_DEFAULT_SONNET_MODEL",
    "ANTHROPIC_DEFAULT_HAIKU_MODEL",
)
"""The environment variables from which Claude Code takes the names of its models."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """The address and the key of one episode, for its agent.

    `base_url` ends in /v1. `api_key` is valid for this episode only. The server ends the episode `deadline_s` seconds
    after its begin at the latest. `weight_version` was served when the episode began. If `is_greedy`, the server
    samples at temperature 0, whatever the agent asks for.
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
        """A base URL that contains the key, for a program that takes no API key.

        A library that logs URLs also logs the key. Where a key can be given, use `base_url` and `api_key`.
        """
        return f"{self.base_url.removesuffix('/v1')}/e/{self.api_key}/v1"

    def env(self) -> dict[str, str]:
        """Return the environment variables that lead OpenAI and Anthropic SDKs in a child process to the model.

        They also keep Claude Code from fields that only Anthropic's own service can honour.
        """
        return {
            "OPENAI_BASE_URL": self.base_url,
            "OPENAI_API_BASE": self.base_url,
            "OPENAI_API_KEY": self.api_key,
            "ANTHROPIC_BASE_URL": self.base_url.removesuffix("/v1"),
            "ANTHROPIC_AUTH_TOKEN": self.api_key,
            **dict.fromkeys(_ANTHROPIC_MODELS, self.model),
            "CLAUDE_CODE_DISABLE_EXPERIMENTAL_BETAS": "1",
        }


def credentials_of(begun: BeginEpisodeResponse, server_url: str) -> Credentials:
    """Return the credentials of a begun episode, with a base URL under the address that this client uses.

    So the agent goes through the same tunnel or proxy as the client.
    """
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
# Longer than a training step of a small model. A user who trains a large model sets it to fit the step time.
DEFAULT_WAIT_S = 600.0
# A lost result wastes all the work of its episode, so the client waits for a server that restarts.
DEFAULT_END_WAIT_S = 120.0


class EpisodeSampling(TypedDict, total=False):
    """The sampling defaults and the limits of an episode; None means not set.

    A call without a `seed` gets one that is derived from `sampling_seed` and the number of the call, so that a repeated
    attempt draws the same tokens. A call without a temperature is sampled at `temperature`. `max_calls` limits the
    completions of the episode, `max_tokens` its sampled tokens. The server refuses a call beyond them with
    AttemptLimit, and cuts the last completion at the token limit. With `fixed_sampling`, which is for eval episodes,
    calls cannot ask for another seed, another temperature or other sampling: the server counts and names what they ask
    for in vain.
    """

    sampling_seed: int | None
    temperature: float | None
    max_calls: int | None
    max_tokens: int | None
    fixed_sampling: bool


class EpisodeOptions(EpisodeSampling, total=False):
    """The lease of an episode, the longest wait for its begin, and its sampling, as `begin_episode` explains them."""

    lease_s: float | None
    wait_timeout: float


@dataclass(slots=True)
class OpenEpisode:
    """An episode inside `with client.open_episode(task)`; set `output` to end it with that result.

    `receipt` is the server's answer to the end, after the block. It is None if the episode was aborted.
    """

    task: Task
    episode_id: str
    credentials: Credentials
    output: WorkflowOutput | None = None
    receipt: EndEpisodeResponse | None = None


class Abort(Protocol):
    """A function that aborts an episode; with `final` no other attempt follows."""

    def __call__(self, episode_uuid: str, reason: str, *, final: bool) -> object: ...


class Attempt:
    """The episodes begun inside one call of a user's function, so that open ones can be aborted after it.

    `task` is the argument of the function if that is a Task. An episode that names no task gets this one.
    """

    def __init__(self, task: Task | None = None) -> None:
        self.task = task
        self._begun: list[tuple[Leases, str, Abort]] = []
        self._settled: list[Leases] = []
        self._is_over = False

    def add(self, leases: Leases, episode_id: str, abort: Abort) -> None:
        """Record a begun episode. If the attempt is over, abort the episode and raise EpisodeEnded."""
        self._begun.append((leases, episode_id, abort))
        if self._is_over:
            self.abort_rest("client_interrupted")
            raise EpisodeEnded(f"episode {episode_id} was aborted: the run it belongs to was interrupted")

    def note_end(self, leases: Leases) -> None:
        """Record that an episode was ended with a result, on the server that the `leases` belong to."""
        self._settled.append(leases)

    def abort_rest(self, reason: str, *, is_final: bool = False) -> None:
        """Abort the open episodes and let no further episode begin.

        With `is_final` the attempt is not repeated. The abort itself has to say so. Otherwise the server could give the
        free place in the group to another task first.
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
        """Tell each server without a result that this attempt is not repeated, so that its group does not wait."""
        for leases, episode_id, abort in self._unsettled():
            if not leases.holds(episode_id):
                # If the call fails, the server waits until the group times out.
                with suppress(SwarmError):
                    abort(episode_id, reason, final=True)

    def _unsettled(self) -> list[tuple[Leases, str, Abort]]:
        """Return the latest episode on each server that does not know the end of this attempt yet."""
        latest = {id(begun[0]): begun for begun in self._begun}
        return [begun for begun in latest.values() if not any(begun[0] is each for each in self._settled)]


current_attempt: ContextVar[Attempt | None] = ContextVar("current_attempt", default=None)
"""The runner sets it around each call of a user's function; begin_episode reads it."""


def name_task(task_id: str | None, data_source: str | None) -> tuple[str | None, str]:
    """Return the task id and data source of an episode: the given ones, or those of the current attempt."""
    attempt = current_attempt.get()
    task = None if attempt is None else attempt.task
    if task is None:
        return task_id, data_source or DEFAULT_DATA_SOURCE
    if task_id is None:
        task_id = task.task_id
    return task_id, data_source or task.data_source


def describe(url: str, token: str | None, timeout_s: float, lease: int | None = None) -> Server:
    """Return the server that the client's calls go to. Raises BadRequest for a malformed url or timeout."""
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
    """Return the host name and process id, with only the characters that the server allows."""
    return re.sub(r"[^\w.:/@+-]", "-", f"{socket.gethostname()}-{os.getpid()}", flags=re.ASCII)[:200]


def abort_reason(error: BaseException) -> str:
    return f"client_error:{type(error).__name__}"[:200]


def log_failed_abort(episode_id: str, failure: SwarmError) -> None:
    """Warn that an episode goes on at the server. The failure of an engine has ended all of its episodes."""
    if isinstance(failure, FailedEngine):
        return
    logger.warning(
        "episode %s was not aborted (%s): the server ends it by lease or idle timeout", episode_id, failure.message
    )
