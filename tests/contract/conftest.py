"""Every implementer of Sampler and Trainer, as pairs that share weights."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from swarm.backends.fake import FakeSampler, FakeTrainer
from swarm.backends.local.engine import build_local, build_worker
from swarm.backends.local.pair import PublishingTrainer
from swarm.backends.pairing import Pair, shared_memory_of
from swarm.backends.replicas.adapter import SamplerLayout, SamplerSettings
from swarm.backends.replicas.sampler import ReplicaSampler
from swarm.config import ServerConfig
from swarm.external_samplers import EXTERNAL_SAMPLERS
from swarm.job import TrainJob
from swarm.model_path import BUNDLED_DIRECTORY
from swarm.sampler import Sampler
from swarm.trainer.base import Trainer


@dataclass
class Backend:
    """A started sampler, one whose completions end at max_tokens only, and the trainer of the latter."""

    sampler: Sampler
    endless: Sampler
    trainer: Trainer


@pytest.fixture(scope="package")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="package")
async def fake(anyio_backend: str) -> AsyncIterator[Backend]:
    sampler, endless = FakeSampler(), FakeSampler(reply=_ramble, token_delay_s=0.001)
    await sampler.start()
    await endless.start()
    yield Backend(sampler, endless, FakeTrainer(endless, TrainJob(engine="fake"), step_delay_s=0.02))
    await sampler.stop()
    await endless.stop()


@pytest.fixture(scope="package")
async def local(
    anyio_backend: str, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> AsyncIterator[Backend]:
    """One worker for the files of this folder: its start takes longer than what they ask of it."""
    directory = tmp_path_factory.mktemp("local")
    n_gpu = int(request.config.getoption("--device") == "cuda")
    model = without_stop_tokens(directory / "model")
    # The tests compare logprobs to five digits, which bfloat16, the default on a GPU, does not have.
    job = TrainJob(model=str(model), lr=1e-3, n_gpu=n_gpu, dtype="float32")
    # A guard against hanging alone: on a busy machine the imports of a worker take minutes.
    config = ServerConfig(boot_timeout_s=600)
    worker = build_worker(config, directory / "worker.log")
    sampler, trainer = build_local(job, config, worker)
    await sampler.start()
    yield Backend(sampler, sampler, trainer)
    await sampler.stop()
    await worker.stop()


@pytest.fixture(scope="package")
async def replicas(anyio_backend: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Backend]:
    """The local trainer beside a server of another kind than vLLM. The server sleeps while the trainer trains."""
    directory = tmp_path_factory.mktemp("replicas")
    config = ServerConfig(home=directory / "home")
    model = without_stop_tokens(directory / "model")
    worker = build_worker(config, directory / "worker.log")
    loaded, _ = build_local(TrainJob(model=str(model), lr=1e-3), config, worker)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(EXTERNAL_SAMPLERS, "openai", "openai_sampler:OpenAiAdapter")
        settings = SamplerSettings(model, SamplerLayout(colocated=True), "float32", max_num_seqs=64, sampler="openai")
        sampler = ReplicaSampler(settings, python=Path(sys.executable), log_directory=directory)
    publishing = PublishingTrainer(
        loaded, sampler, shared_memory_of(config.home), train_timeout_s=config.train_timeout_s
    )
    pair = Pair(sampler, publishing)
    await pair.start()
    yield Backend(pair, pair, publishing)
    await pair.end()


@pytest.fixture(scope="module", params=["fake", "local", "replicas"])
def backend(request: pytest.FixtureRequest) -> Backend:
    return request.getfixturevalue(request.param)


def _ramble(prompt_ids: Sequence[int]) -> Sequence[int]:
    return [40 + position % 20 for position in range(2000)]


def without_stop_tokens(directory: Path) -> Path:
    shutil.copytree(BUNDLED_DIRECTORY, directory)
    for name, key in (
        ("generation_config.json", "eos_token_id"),
        ("config.json", "eos_token_id"),
        ("tokenizer_config.json", "eos_token"),
    ):
        path = directory / name
        settings = json.loads(path.read_text())
        settings.pop(key, None)
        path.write_text(json.dumps(settings))
    return directory
