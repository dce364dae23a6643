"""Which engine a job gets and what it is refused; which random numbers the engine draws from."""

from __future__ import annotations

import asyncio
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from swarm.backends.base import Backend, Backends
from swarm.backends.local.engine import LocalSampler
from swarm.backends.pairing import Pair
from swarm.config import ServerConfig
from swarm.errors import EngineFailure, JobInvalid
from swarm.external_samplers import EXTERNAL_SAMPLERS
from swarm.job import TrainJob, build_job
from swarm.model_path import BUNDLED_DIRECTORY
from swarm.types import SamplingParams

pytestmark = pytest.mark.anyio

LIMIT_S = 60


async def first_completion(backend: Backend) -> list[int]:
    params = SamplingParams(max_tokens=40, temperature=5.0)
    async with asyncio.timeout(LIMIT_S):
        await backend.sampler.start()
        deltas = [delta async for delta in backend.sampler.generate("request", [40, 41, 42], params)]
    return [token for delta in deltas for token in delta.token_ids_T]


async def test_a_fresh_run_repeats_itself_and_one_that_goes_on_does_not_repeat_the_first(tmp_path: Path) -> None:
    backends = Backends(ServerConfig(), tmp_path / "worker.log")
    try:
        fresh = backends.build(TrainJob(), is_fresh=True)
        first = await first_completion(fresh)
        assert await first_completion(backends.build(TrainJob(), is_fresh=True)) == first
        assert await first_completion(fresh) != first
        assert await first_completion(backends.build(TrainJob(), is_fresh=False)) != first
    finally:
        await backends.close()


def test_a_model_that_is_not_there_is_named_before_anything_is_started(tmp_path: Path) -> None:
    backends = Backends(ServerConfig(), tmp_path / "worker.log")
    with pytest.raises(EngineFailure, match="no directory"):
        backends.build(TrainJob(model=str(tmp_path / "missing")), is_fresh=True)
    assert not (tmp_path / "worker.log").exists()


def test_auto_is_local_up_to_one_gpu_and_verl_beyond(tmp_path: Path) -> None:
    assert [TrainJob(n_gpu=count).resolve().engine for count in (0, 1, 2, 8)] == ["local", "local", "verl", "verl"]
    assert TrainJob(engine="verl").resolve().engine == "verl"
    path = TrainJob(n_gpu=8, lr=0.1).dump_job_as_yaml(tmp_path / "job.yaml")
    assert "engine" not in path.read_text()
    assert TrainJob.build_job_from_yaml(path) == TrainJob(n_gpu=8, lr=0.1)


@pytest.mark.parametrize(
    ("given", "has_vllm", "samples"),
    [
        ({}, True, LocalSampler),
        ({"n_gpu": 1}, True, Pair),
        ({"n_gpu": 1}, False, LocalSampler),
        ({"n_gpu": 1, "lora_rank": 4}, True, LocalSampler),
        ({"n_gpu": 1, "model": "nano"}, True, LocalSampler),
        ({"n_gpu": 1, "sampler": "local"}, True, LocalSampler),
    ],
)
def test_auto_samples_with_vllm_on_a_gpu_where_the_server_has_it(
    tmp_path: Path, given: dict[str, Any], has_vllm: bool, samples: type[object]
) -> None:
    model = tmp_path / "model"
    shutil.copytree(BUNDLED_DIRECTORY, model)
    config = ServerConfig(home=tmp_path / "home", sampler_pythons={"vllm": Path(sys.executable)} if has_vllm else {})
    backends = Backends(config, tmp_path / "worker.log", gpu_drivers=(tmp_path,))
    backend = backends.build(TrainJob(**{"model": str(model), **given}).resolve(), is_fresh=True)
    assert type(backend.sampler) is samples


def test_each_external_sampler_may_have_an_interpreter_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EXTERNAL_SAMPLERS, "other", "other_sampler:Adapter")
    monkeypatch.setenv("SWARM_OTHER_PYTHON", "/opt/other/bin/python")
    monkeypatch.delenv("SWARM_VLLM_PYTHON", raising=False)
    config = ServerConfig.from_environment()
    assert config.python_of("other") == Path("/opt/other/bin/python")
    assert config.python_of("vllm") == Path(sys.executable)


def test_a_job_with_the_engine_or_the_sampler_spelled_out_means_the_same() -> None:
    assert TrainJob(sampler="local").means(TrainJob())
    assert not TrainJob(sampler="vllm").means(TrainJob())
    assert TrainJob(n_gpu=1).resolve().sampler == "auto"
    assert TrainJob(engine="local").means(TrainJob())
    assert TrainJob(engine="verl", n_gpu=2).means(TrainJob(n_gpu=2))
    assert not TrainJob(engine="fake").means(TrainJob())
    assert not TrainJob(lr=0.5).means(TrainJob())


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        ({"algorithm": "gae", "lora_rank": 8}, "no critic beside an adapter: set lora_rank to 0, or engine to verl"),
        ({"algorithm": "opo", "critic_lr": 1e-3}, "critic_lr has no effect while algorithm is opo"),
        ({"engine": "local", "n_gpu": 2}, "engine local uses one GPU at most: set engine to verl for 2"),
        ({"engine": "cuda"}, "'auto', 'local', 'verl' or 'fake'"),
    ],
)
def test_what_the_chosen_engine_cannot_do_is_refused_with_the_job(job: dict[str, object], reason: str) -> None:
    with pytest.raises(JobInvalid, match=reason):
        build_job(job)


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        (TrainJob(n_gpu=1), "n_gpu: 1 asks for a GPU and this machine has none: set n_gpu: 0 to train on the CPU"),
        (TrainJob(n_gpu=8), "n_gpu: 8 asks for 8 GPUs and this machine has none: set n_gpu: 0 .*SWARM_RAY_ADDRESS"),
    ],
)
def test_gpus_that_a_machine_lacks_are_missed_before_anything_is_started(
    tmp_path: Path, job: TrainJob, reason: str
) -> None:
    backends = Backends(ServerConfig(), tmp_path / "worker.log", gpu_drivers=())
    with pytest.raises(JobInvalid, match=reason) as refused:
        backends.check(job)
    assert refused.value.param == "n_gpu"
    with pytest.raises(JobInvalid, match=reason):
        backends.build(job.resolve(), is_fresh=True)


def test_gpus_of_a_cluster_or_behind_a_driver_are_counted_by_the_engine(tmp_path: Path) -> None:
    clustered = Backends(ServerConfig(ray_address="10.0.0.1:6379"), tmp_path / "worker.log", gpu_drivers=())
    clustered.check(TrainJob(n_gpu=8))
    with pytest.raises(JobInvalid, match="set n_gpu: 0"):
        clustered.check(TrainJob(n_gpu=1))
    driven = Backends(ServerConfig(), tmp_path / "worker.log", gpu_drivers=(tmp_path,))
    driven.check(TrainJob(n_gpu=8))
    driven.check(TrainJob(n_gpu=1))
