"""Trainers on real Ray and FSDP2 over gloo, with the bundled model; what they publish is recorded."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from swarm.backends.fake import FakeSampler
from swarm.backends.pairing import shared_memory_of
from swarm.backends.process.worker_process import WorkerProcess
from swarm.backends.replicas.adapter import WeightFile, WeightSource
from swarm.backends.verl.engine import VerlTrainer, build_driver
from swarm.config import ServerConfig
from swarm.job import TrainJob
from swarm.model_path import BUNDLED_DIRECTORY

BOOT_TIMEOUT_S = 600.0


@dataclass
class Published:
    """Every version that reached the sampler, with the tensors of its file as they were then."""

    versions: list[int] = field(default_factory=list[int])
    files: list[Path] = field(default_factory=list[Path])
    tensors: dict[str, Any] = field(default_factory=dict[str, Any])

    async def publish(self, source: WeightSource) -> None:
        from safetensors.torch import load_file

        assert isinstance(source, WeightFile)
        self.versions.append(source.version)
        self.files.append(source.path)
        self.tensors = load_file(source.path)

    async def suspend(self) -> None:
        pass

    async def resume(self) -> None:
        pass


@dataclass
class Running:
    """A started trainer, its driver process, and what it published."""

    trainer: VerlTrainer
    driver: WorkerProcess
    published: Published
    home: Path


OpenTrainer = Callable[..., Awaitable[Running]]


@asynccontextmanager
async def _opened(
    home: Path, ranks: int = 1, sampler: Any = None, ray_address: str | None = None, **fields: Any
) -> AsyncIterator[Running]:
    """A trainer of a job with these fields, on so many FSDP2 ranks; all its processes are ended at the end."""
    from swarm.backends.verl.driver.cluster import own_directory

    verl = {"trainer": {"n_gpus_per_node": ranks}, **fields.pop("verl", {})}
    job = TrainJob(engine="verl", verl=verl, **{"lr": 1e-3, **fields}).resolve()
    config = ServerConfig(home=home, ray_address=ray_address, boot_timeout_s=BOOT_TIMEOUT_S, train_timeout_s=300.0)
    driver = build_driver(job, config, home / "driver.log")
    published = Published()
    receiver: Any = sampler or published
    trainer = VerlTrainer(driver, job, BUNDLED_DIRECTORY, config, sampler=receiver)
    try:
        await trainer.start()
        yield Running(trainer, driver, published, home)
    finally:
        await driver.stop()
        # What a driver that was killed leaves is swept by the next one of the same home; here there is none.
        for left in (shared_memory_of(home), own_directory(home)):
            shutil.rmtree(left, ignore_errors=True)


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def opened() -> Callable[..., Any]:
    """`async with opened(home, ranks=..., **fields)`: a trainer of a job with these fields, ended with the block."""
    return _opened


@pytest.fixture
async def open_trainer(tmp_path: Path, anyio_backend: str) -> AsyncIterator[OpenTrainer]:
    """Opens trainers one after another; what is left open is closed at the end of the test."""
    async with AsyncExitStack() as stack:

        async def open_one(name: str = "home", **options: Any) -> Running:
            return await stack.enter_async_context(_opened(tmp_path / name, **options))

        yield open_one


@dataclass
class Backend:
    """The fake engine, which goes by the versions that the trainer publishes, as the trainer contract wants it."""

    endless: Any
    trainer: VerlTrainer


class _FollowingSampler(FakeSampler):
    """Starting it starts the trainer as well: both are then at the base model."""

    trainer: VerlTrainer

    async def start(self) -> Any:
        await self.trainer.start()
        self.weight_version = 0
        return await super().start()

    async def suspend(self) -> None:
        pass

    async def resume(self) -> None:
        pass

    async def publish(self, source: WeightSource) -> None:
        async with self.weight_change():
            self.weight_version = source.version


@pytest.fixture(scope="module")
async def backend(anyio_backend: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Backend]:
    sampler = _FollowingSampler(reply=lambda _ids: [40 + place % 20 for place in range(2000)], token_delay_s=0.008)
    async with _opened(tmp_path_factory.mktemp("contract"), sampler=sampler) as running:
        sampler.trainer = running.trainer
        yield Backend(sampler, running.trainer)
        await asyncio.sleep(0)
