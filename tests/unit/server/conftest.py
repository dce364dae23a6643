"""A server without HTTP: its parts are real, its backends can be reached into, and it can crash."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from swarm.backends.base import Backend, Backends
from swarm.backends.fake import FakeSampler, FakeTrainer
from swarm.config import ServerConfig
from swarm.gateway.dialects.chat.reply import render_completion
from swarm.gateway.dialects.chat.request import parse_chat_request
from swarm.job import TrainJob
from swarm.ledger import Ledger
from swarm.rollout.completion import ModelService
from swarm.rollout.deduplication import CallIdentity, CallResult
from swarm.schemas import BeginEpisodeRequest, EndEpisodeRequest, EngineState
from swarm.server.commands import SwarmServer
from swarm.types import StepReport, TrainBatch

LIMIT_S = 30


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@dataclass
class Gate:
    """Holds a training step before or after it is done."""

    before: asyncio.Event = field(default_factory=asyncio.Event)
    after: asyncio.Event = field(default_factory=asyncio.Event)
    reached: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.before.set()
        self.after.set()


class GatedTrainer(FakeTrainer):
    """Its steps pass a gate; the batches it was given are on record."""

    def __init__(self, sampler: FakeSampler, job: TrainJob, gate: Gate, trained: list[TrainBatch]) -> None:
        super().__init__(sampler, job)
        self._gate = gate
        self._trained = trained
        self._fake = sampler

    async def train(self, batch: TrainBatch) -> StepReport:
        if not self._gate.before.is_set():
            self._gate.reached.set()
            died = asyncio.ensure_future(self._fake.died.wait())
            passed = asyncio.ensure_future(self._gate.before.wait())
            await asyncio.wait({died, passed}, return_when=asyncio.FIRST_COMPLETED)
            died.cancel()
            passed.cancel()
        report = await super().train(batch)
        self._trained.append(batch)
        if not self._gate.after.is_set():
            self._gate.reached.set()
            await self._gate.after.wait()
        return report


class OpenBackends(Backends):
    """Fake backends that a test can look at and break."""

    def __init__(self, config: ServerConfig, log_path: Path) -> None:
        super().__init__(config, log_path)
        self.gate = Gate()
        self.trained: list[TrainBatch] = []
        self.sampler: FakeSampler | None = None

    def build(self, job: TrainJob, *, is_fresh: bool) -> Backend:
        backend = super().build(job, is_fresh=is_fresh)
        if not isinstance(backend.sampler, FakeSampler):
            return backend
        self.sampler = backend.sampler
        return Backend(
            backend.sampler,
            GatedTrainer(backend.sampler, job, self.gate, self.trained),
            backend.tokenizer_path,
            backend.warm_up,
            backend.died,
            backend.end,
        )


@dataclass
class Episode:
    episode_id: str
    api_key: str


@dataclass
class Hosted:
    """One server process, as far as everything behind the ledger's file is concerned."""

    server: SwarmServer
    ledger: Ledger
    backends: OpenBackends
    bystanders: set[asyncio.Task[Any]]

    @property
    def sampler(self) -> FakeSampler:
        assert self.backends.sampler is not None
        return self.backends.sampler

    async def start(self, job: TrainJob) -> None:
        await self.server.sync_job(job.model_dump(mode="json", exclude_defaults=True))
        await self.server.start_engine()
        await self.wait_for(EngineState.ROLLING)

    async def wait_for(self, state: EngineState, step: int = 0) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not (self.server.lifecycle.state is state and self.server.lifecycle.weights.step >= step):
                assert state is EngineState.FAILED or self.server.lifecycle.state is not EngineState.FAILED, (
                    self.server.lifecycle.reason
                )
                await asyncio.sleep(0.005)

    @property
    def service(self) -> ModelService:
        service = self.server.find_service()
        assert service is not None
        return service

    async def begin(self, **body: Any) -> Episode:
        begun = await self.service.episodes.begin(BeginEpisodeRequest(**body))
        return Episode(begun.episode_id, begun.api_key)

    async def call(self, episode: Episode, text: str = "Hello", **body: Any) -> dict[str, Any]:
        service = self.service
        messages = [{"role": "user", "content": text}]
        running = service.episodes.authorize(episode.api_key)
        request = parse_chat_request({"model": "default", "messages": messages} | body, service.defaults(running))
        identity = CallIdentity(uuid.uuid4().hex)
        async with asyncio.timeout(LIMIT_S):
            call = service.call(running, request.call, identity, is_streamed=False)
            result = CallResult(call.head(service.model_name), await call.completed())
        return render_completion(request, result, service.codec)

    async def end(self, episode: Episode, task_id: str, reward: float) -> None:
        await self.service.episodes.end(episode.episode_id, EndEpisodeRequest(task_id=task_id, reward=reward))

    async def run_batch(self, name: str, *, tasks: int = 2, repeats: int = 2) -> None:
        for task in range(tasks):
            for repeat in range(repeats):
                episode = await self.begin()
                await self.call(episode, f"{name} {task}")
                await self.end(episode, f"{name}-{task}", float(repeat % 2))

    async def crash(self) -> None:
        """Forget everything that is not on disk; nobody gets a chance to say goodbye."""
        tasks = asyncio.all_tasks() - self.bystanders
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.ledger.close()


Host = Callable[..., Hosted]


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[Host]:
    """Makes servers on one home, one after another."""
    hosted: list[Hosted] = []

    def make(**settings: Any) -> Hosted:
        config = ServerConfig(home=tmp_path / "home", **settings)
        backends = OpenBackends(config, config.home / "worker.log")
        ledger = Ledger.open(config.home / "ledger.db")
        hosted.append(Hosted(SwarmServer(config, ledger, backends), ledger, backends, asyncio.all_tasks()))
        return hosted[-1]

    yield make
    for each in hosted:
        try:
            async with asyncio.timeout(LIMIT_S):
                await each.server.close()
        finally:
            each.ledger.close()
