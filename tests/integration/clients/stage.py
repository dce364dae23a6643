"""A server with a tapped engine and a wire to it, and episodes on it that are checked token by token at their end.

Place in the flow: what the tests of this folder share. It knows nothing of any one client.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from integration.clients.chat_fields import CHAT_EFFECTS
from integration.clients.completions_fields import COMPLETION_EFFECTS
from integration.clients.fields_sent import Effects, check_effects
from integration.clients.messages_fields import MESSAGE_EFFECTS
from integration.clients.responses_fields import RESPONSE_EFFECTS
from integration.clients.sampler_tap import Generation, TappedBackends
from integration.clients.wire import Exchange, Wire

import swarm.server.http
from swarm import SwarmClient, Task, WorkflowOutput
from swarm.backends.fake import CONTEXT_LENGTH
from swarm.client.episode import Credentials
from swarm.config import ServerConfig
from swarm.job import TrainJob
from swarm.schemas import EpisodeDetail, TurnView
from swarm.types import EpisodeType

START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 30
IDLE_TIMEOUT_S = 900
"""A busy machine may take minutes to start a client."""

EFFECTS: Mapping[str, Effects] = MappingProxyType(
    {
        "chat/completions": CHAT_EFFECTS,
        "completions": COMPLETION_EFFECTS,
        "responses": RESPONSE_EFFECTS,
        "messages": MESSAGE_EFFECTS,
    }
)
"""Of each route whose calls are turns."""

Completion = tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...], tuple[int, ...], str]


@dataclass
class Observed:
    """One episode. What is behind the credentials is known once it has ended."""

    credentials: Credentials
    turns: list[TurnView] = field(default_factory=list)
    exchanges: list[Exchange] = field(default_factory=list)
    generations: list[Generation] = field(default_factory=list)

    @property
    def base_url(self) -> str:
        return self.credentials.base_url

    @property
    def root_url(self) -> str:
        """Without /v1, as Anthropic's clients want it."""
        return self.base_url.removesuffix("/v1")

    @property
    def api_key(self) -> str:
        return self.credentials.api_key

    @property
    def replies(self) -> list[dict[str, Any]]:
        return [turn.reply for turn in self.turns]

    @property
    def parents(self) -> list[int | None]:
        return [turn.parent for turn in self.turns]

    @property
    def user_agents(self) -> set[str]:
        return {exchange.request.headers.get("user-agent", "") for exchange in self.exchanges}


class Stage:
    """A running server. Episodes on it come one after another."""

    def __init__(self, url: str, wire: Wire, backends: TappedBackends) -> None:
        self._wire = wire
        self._backends = backends
        self._client = SwarmClient(url, client_id="client-tests")

    def close(self) -> None:
        self._client.close()

    def say(self, *lines: str) -> None:
        """What the fake engine answers next, call by call."""
        self._backends.script.lines.extend(lines)

    @contextmanager
    def episode(
        self,
        episode_type: EpisodeType = EpisodeType.TRAIN,
        *,
        ignored: frozenset[str] = frozenset(),
        checks_fields: bool = True,
    ) -> Iterator[Observed]:
        """For a client to complete. At the end of the block its records are compared with what the engine gave and,
        with `checks_fields`, with what the client sent; of its fields just those `ignored` may have had no effect."""
        tap = self._backends.tap
        assert tap is not None
        generations, calls = len(tap.generations), self._client.status().calls
        episode_id, credentials = self._client.begin_episode(episode_type, IDLE_TIMEOUT_S)
        observed = Observed(credentials)
        try:
            yield observed
            unsaid = list(self._backends.script.lines)
        finally:
            self._backends.script.lines.clear()
        self._client.end_episode(Task("", episode_id), episode_id, WorkflowOutput(reward=1.0))
        detail = self._client.episode(episode_id)
        observed.turns, observed.generations = detail.turns, tap.generations[generations:]
        observed.exchanges = [each for each in self._wire.exchanges() if _is_of(each, credentials)]
        check_records(detail, observed.generations)
        assert self._client.status().calls == calls, "a call was repeated, orphaned or withheld"
        for exchange in observed.exchanges if checks_fields else ():
            route = exchange.path.rpartition("/v1/")[2]
            if route in EFFECTS and exchange.response.status == 200:
                check_effects(exchange, detail.turns, EFFECTS[route], ignored)
        assert not unsaid, "the client asked less often than was scripted"


def check_records(detail: EpisodeDetail, generations: list[Generation]) -> None:
    """Every completion of the engine is one turn, and every sampled token is trained once, as it was sampled."""
    recorded = [
        (*map(tuple, (turn.prompt_ids, turn.output_ids, turn.logprobs, turn.weight_versions)), turn.finish_reason)
        for turn in detail.turns
    ]
    assert sorted(recorded) == sorted(map(_completion, generations))
    assert recorded, "the client made no call"
    assert [turn.withheld for turn in detail.turns] == [None] * len(recorded)
    if detail.episode.episode_type is EpisodeType.EVAL:
        return
    for turn in detail.turns:
        trained = [
            (token, logprob)
            for sample in detail.samples
            for token, logprob, mask, index in zip(
                sample.token_ids, sample.logprobs, sample.loss_mask, sample.turn_indices, strict=True
            )
            if mask and index == turn.index
        ]
        assert trained == list(zip(turn.output_ids, turn.logprobs, strict=True))


def _completion(generation: Generation) -> Completion:
    assert generation.finish_reason is not None
    return (
        generation.prompt_ids,
        tuple(generation.token_ids),
        tuple(generation.logprobs),
        tuple(generation.weight_versions),
        generation.finish_reason.value,
    )


def _is_of(exchange: Exchange, credentials: Credentials) -> bool:
    headers = exchange.request.headers
    presented = (headers.get("authorization", ""), headers.get("x-api-key", ""), exchange.path)
    return any(credentials.api_key in each for each in presented)


@contextmanager
def open_stage(home: Path, job: TrainJob, *, context_length: int = CONTEXT_LENGTH) -> Iterator[Stage]:
    """A real server in a thread of this process, its engine started. The context length is that of the fake engine."""
    config = ServerConfig(port=0, home=home)
    made: list[TappedBackends] = []

    def make_backends(config: ServerConfig, log_path: Path) -> TappedBackends:
        made.append(TappedBackends(config, log_path, context_length))
        return made[0]

    wire = Wire()
    announced: Future[str] = Future()
    loop = asyncio.new_event_loop()

    async def run() -> None:
        port = await wire.open()

        def announce(url: str) -> None:
            wire.target = int(url.rpartition(":")[2])
            announced.set_result(f"http://127.0.0.1:{port}")

        try:
            await swarm.server.http.serve(config, None, announce)
        except asyncio.CancelledError:
            await wire.close()
        except BaseException as error:
            if announced.done():
                raise
            announced.set_exception(error)

    serving = loop.create_task(run())
    thread = threading.Thread(target=_run, args=(loop, serving), name="tapped-server", daemon=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(swarm.server.http, "Backends", make_backends)
        thread.start()
        url = announced.result(timeout=START_TIMEOUT_S)
    with SwarmClient(url) as client:
        client.auto_sync_train_config_and_start_engine(job, boot_timeout=START_TIMEOUT_S)
    stage = Stage(url, wire, made[0])
    try:
        yield stage
    finally:
        stage.close()
        loop.call_soon_threadsafe(serving.cancel)
        thread.join(timeout=STOP_TIMEOUT_S)
        assert not thread.is_alive(), f"the server did not stop within {STOP_TIMEOUT_S} s"


def _run(loop: asyncio.AbstractEventLoop, serving: asyncio.Task[None]) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(serving)
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
