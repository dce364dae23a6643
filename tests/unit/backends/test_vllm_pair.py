"""The local trainer with a stand-in for vLLM as its sampler: how versions reach it, and what ends the pair."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from contract.test_trainer_contract import make_batch
from vllm_stand_in import StandIns, complete, expected_tokens

from swarm.backends.local.engine import build_worker
from swarm.backends.local.pair import PublishingTrainer, build_pair, sampler_settings
from swarm.backends.pairing import Pair
from swarm.config import ServerConfig
from swarm.errors import JobInvalid
from swarm.job import TrainJob, build_job
from swarm.model_path import BUNDLED_DIRECTORY


@pytest.fixture(scope="module", autouse=True)
def late_imports() -> None:
    global torch, load_file, AutoModelForCausalLM
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM


pytestmark = pytest.mark.anyio

PROMPT = (50, 51, 52, 53)
LIMIT_S = 240.0
SERVER_WITH_A_WORKER = """
import asyncio, sys
from pathlib import Path
from swarm.backends.local.engine import build_local, build_worker
from swarm.config import ServerConfig
from swarm.job import TrainJob

async def main(home, weights):
    config = ServerConfig(home=Path(home))
    worker = build_worker(config, Path(home) / "worker.log")
    sampler, _ = build_local(TrainJob().resolve(), config, worker)
    await sampler.start()
    print(worker.pid, await worker.call("write_weights", weights, timeout_s=60), flush=True)
    await asyncio.sleep(3600)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture
async def pair(stand_ins: StandIns, tmp_path: Path) -> AsyncIterator[Pair[PublishingTrainer]]:
    config = ServerConfig(home=tmp_path / "home", sampler_pythons={"vllm": Path(sys.executable)})
    worker = build_worker(config, tmp_path / "worker.log")
    job = TrainJob(sampler="vllm", lr=1e-3).resolve()
    made = build_pair(job, "vllm", BUNDLED_DIRECTORY, config, worker, tmp_path / "logs", lambda: [0])
    async with asyncio.timeout(LIMIT_S):
        await made.start()
    yield made
    await made.end()
    assert stand_ins.living() == []
    assert not made.trainer.directory.exists()


def published(pair: Pair[PublishingTrainer]) -> list[Path]:
    return sorted(pair.trainer.directory.glob("*"))


@pytest.mark.slow
async def test_each_version_is_a_file_in_memory_that_the_next_one_replaces(
    pair: Pair[PublishingTrainer],
) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(BUNDLED_DIRECTORY, dtype=torch.float32)
    assert published(pair) == []
    report = await pair.trainer.train(await make_batch(pair, step=1))
    [first] = published(pair)
    weights = load_file(first)
    assert weights.keys() == model.state_dict().keys()
    assert any(not torch.equal(weights[name], before) for name, before in model.state_dict().items())
    assert report.metrics["timing_s/publish_weights"] > 0
    done = await complete(pair.sampler, PROMPT)
    assert (done.token_ids, set(done.versions)) == (expected_tokens(PROMPT, 12, weights=1), {1})
    await pair.trainer.train(await make_batch(pair, step=2))
    [second] = published(pair)
    assert second != first
    await pair.stop()
    assert published(pair) == []


async def test_a_server_that_is_killed_leaves_no_worker_and_no_weights_in_shared_memory(tmp_path: Path) -> None:
    weights = tmp_path / "shared"
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SERVER_WITH_A_WORKER, tmp_path, weights, stdout=asyncio.subprocess.PIPE
    )
    assert server.stdout is not None
    async with asyncio.timeout(LIMIT_S):
        pid, path = (await server.stdout.readline()).decode().split()
        assert Path(path).is_file()
        worker = psutil.Process(int(pid))
        server.kill()
        await server.wait()
        await asyncio.to_thread(worker.wait)
    assert not weights.exists()


async def test_the_pair_is_dead_when_the_worker_is(pair: Pair[PublishingTrainer]) -> None:
    assert pair.trainer.process.pid is not None
    os.kill(pair.trainer.process.pid, signal.SIGKILL)
    async with asyncio.timeout(LIMIT_S):
        assert "signal" in await pair.died() or "SIGKILL" in await pair.died()


def test_a_gpu_is_shared_and_the_job_may_say_how() -> None:
    job = TrainJob(
        sampler="vllm", n_gpu=1, dtype="bfloat16", sampler_options={"max-num-batched-tokens": 4096}
    ).resolve()
    settings = sampler_settings(job, "vllm", BUNDLED_DIRECTORY, max_running=64)
    assert settings.layout.colocated and settings.layout.device == "cuda"
    assert settings.flags == {"gpu_memory_utilization": 0.4, "max-num-batched-tokens": 4096}
    own = sampler_settings(
        job.model_copy(update={"sampler_options": {"gpu_memory_utilization": 0.6}}),
        "vllm",
        BUNDLED_DIRECTORY,
        max_running=64,
    )
    assert own.flags == {"gpu_memory_utilization": 0.6}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"sampler": "vllm", "engine": "verl"}, "while engine is verl: add `engine: local`"),
        ({"sampler": "vllm", "engine": "fake"}, "while engine is fake: add `engine: local`"),
        ({"sampler": "local", "engine": "verl"}, "while engine is verl: add `engine: local`"),
        ({"sampler": "vllm", "lora_rank": 8}, "whole weights and no adapter"),
        ({"sampler_options": {"seed": 1}}, "add `sampler: vllm`"),
    ],
)
def test_what_it_cannot_do_is_refused_by_name(given: dict[str, Any], says: str) -> None:
    with pytest.raises(JobInvalid) as refused:
        build_job(given)
    assert says in refused.value.message
