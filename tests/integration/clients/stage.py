"""A server with a tapped engine, and episodes on it that are checked token by token at their end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from integration.clients.sampler_tap import Generation, TappedBackends
from server_threads import START_TIMEOUT_S, servers

import swarm.server.http
from swarm import SwarmClient, Task, WorkflowOutput
from swarm.backends.fake import CONTEXT_LENGTH, Fault, FaultKind
from swarm.client.episode import Credentials
from swarm.config import ServerConfig
from swarm.job import TrainJob
from swarm.schemas import EpisodeDetail, TurnView
from swarm.types import EpisodeType

IDLE_TIMEOUT_S = 900
"""A busy machine may take minutes to start a client."""

Completion = tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...], tuple[int, ...], str]


@dataclass
class Observed:
    """One episode. What is behind the credentials is known once it has ended."""

    credentials: Credentials
    turns: list[TurnView] = field(default_factory=list)
    ignored: set[str] = field(default_factory=set[str])
    """The fields of its calls that had no effect."""
    samples: int = 0

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


class Stage:
    """A running server. Episodes on it come one after another."""

    def __init__(self, url: str, home: Path, backends: TappedBackends) -> None:
        self.url = url
        self.home = home
        self._backends = backends
        self._client = SwarmClient(url, client_id="client-tests")

    def close(self) -> None:
        self._client.close()

    def say(self, *lines: str) -> None:
        """What the fake engine answers next, call by call."""
        self._backends.script.lines.extend(lines)

    def fail_after(self, tokens: int) -> None:
        """Let the next call of the fake engine fail after so many tokens."""
        sampler = self._backends.script.sampler
        assert sampler is not None
        sampler.fault = Fault(FaultKind.RAISE, tokens)

    def begin(self, episode_type: EpisodeType = EpisodeType.TRAIN) -> Observed:
        return Observed(self._client.begin_episode(episode_type, IDLE_TIMEOUT_S)[1])

    @contextmanager
    def episode(
        self,
        episode_type: EpisodeType = EpisodeType.TRAIN,
        *,
        ignored: frozenset[str] = frozenset(),
        is_smooth: bool = True,
    ) -> Iterator[Observed]:
        """For a client to complete. At the end of the block its records are compared with what the engine gave, and of
        the fields sent just those `ignored` may have had no effect. An episode that is not smooth may have calls that
        failed or were repeated."""
        tap = self._backends.tap
        assert tap is not None
        generations, before = len(tap.generations), self._client.status()
        observed = self.begin(episode_type)
        episode_id = observed.credentials.episode_id
        try:
            yield observed
            unsaid = list(self._backends.script.lines)
        finally:
            self._backends.script.lines.clear()
        self._client.end_episode(Task("", episode_id), episode_id, WorkflowOutput(reward=1.0))
        detail, after = self._client.episode(episode_id), self._client.status()
        observed.turns, observed.samples = detail.turns, len(detail.samples)
        observed.ignored = {*(Counter(after.ignored_fields) - Counter(before.ignored_fields))}
        assert observed.ignored == ignored
        if is_smooth:
            check_records(detail, tap.generations[generations:])
            assert after.calls == before.calls, "a call was repeated, orphaned or withheld"
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


@contextmanager
def open_stage(home: Path, job: TrainJob, *, context_length: int = CONTEXT_LENGTH) -> Iterator[Stage]:
    """A real server in a thread of this process, its engine started. The context length is that of the fake engine."""
    made: list[TappedBackends] = []

    def make_backends(config: ServerConfig, log_path: Path) -> TappedBackends:
        made.append(TappedBackends(config, log_path, context_length))
        return made[0]

    with servers(home) as start:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(swarm.server.http, "Backends", make_backends)
            url = start(home=home).url
        with SwarmClient(url) as client:
            client.auto_sync_train_config_and_start_engine(job, boot_timeout=START_TIMEOUT_S)
        stage = Stage(url, home, made[0])
        try:
            yield stage
        finally:
            stage.close()
