"""New weights leave as one whole file, in the sampler's precision, or not at all; and the handle lets them out."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from late import Late
from process_support import descendants, is_running

from swarm.backends.pairing import shared_memory_of
from swarm.backends.process.worker_process import WorkerProcess
from swarm.backends.replicas.adapter import WeightBroadcast, WeightFile, WeightSource
from swarm.backends.verl.engine import VerlTrainer
from swarm.config import ServerConfig
from swarm.errors import EngineFailure
from swarm.job import TrainJob
from swarm.model_path import BUNDLED_DIRECTORY
from swarm.sampler import EngineLost
from swarm.types import StepReport, TrainBatch

torch, safetensors, ranks = Late("torch"), Late("safetensors.torch"), Late("swarm.backends.verl.ranks.weights")
weight_files = Late("swarm.backends.replicas.weight_file")

pytestmark = pytest.mark.anyio

BATCH = TrainBatch("batch-1", 1, ())
LIMIT_S = 20


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def tied_weights() -> Generator[tuple[str, torch.Tensor]]:
    shared = torch.arange(6.0).reshape(2, 3)
    yield "model.embed_tokens.weight", shared
    yield "lm_head.weight", shared
    yield "model.rotary.inverse", torch.arange(3)


async def test_file_is_whole_in_the_samplers_precision_with_the_tied_head(tmp_path: Path) -> None:
    engine = ranks.ShmFileEngine(bucket_size=1, is_master=True, directory=str(tmp_path), dtype="bfloat16")
    answer = await engine.send_weights(tied_weights(), global_steps=3)
    path = Path(answer[ranks.WEIGHTS_PATH])
    assert [path] == list(tmp_path.iterdir()), "nothing half-written beside it"
    tensors = safetensors.load_file(path)
    assert {name: tensor.dtype for name, tensor in tensors.items()} == {
        "model.embed_tokens.weight": torch.bfloat16,
        "lm_head.weight": torch.bfloat16,
        "model.rotary.inverse": torch.int64,
    }
    assert torch.equal(tensors["lm_head.weight"], torch.arange(6.0).reshape(2, 3).bfloat16())


async def test_other_ranks_help_to_gather_and_write_nothing(tmp_path: Path) -> None:
    asked: list[str] = []

    def watched() -> Generator[tuple[str, torch.Tensor]]:
        for name, tensor in tied_weights():
            asked.append(name)
            yield name, tensor

    engine = ranks.ShmFileEngine(bucket_size=1, is_master=False, directory=str(tmp_path), dtype="float32")
    assert await engine.send_weights(watched(), global_steps=3) == {}
    assert len(asked) == 3
    assert list(tmp_path.iterdir()) == []


async def test_weights_that_do_not_fit_are_refused_with_what_to_do(tmp_path: Path) -> None:
    huge = torch.zeros(1, dtype=torch.float32).expand(2**62 // 4)
    with pytest.raises(weight_files.ShmFull, match="enlarge it"):
        weight_files.write_weights(tmp_path / "weights.safetensors", {"huge": huge})
    assert list(tmp_path.iterdir()) == []


DRIVER = """
import os, sys
from swarm.backends.process.wire import Unpacker, pack
answers = {answers}
unpacker = Unpacker()
while data := os.read(0, 65536):
    for message in unpacker.feed(data):
        os.write(1, pack({{"id": message["id"], "result": answers.get(message["op"])}}))
"""
"""A driver that answers each operation as it is told."""


async def nothing(_source: WeightSource | None = None) -> None:
    pass


def make_trainer(
    tmp_path: Path,
    answers: dict[str, Any],
    publish: Any = nothing,
    suspend: Any = nothing,
    resume: Any = nothing,
    publish_timeout_s: float = 5.0,
) -> VerlTrainer:
    command = [sys.executable, "-c", DRIVER.format(answers=answers)]
    driver = WorkerProcess(command, tmp_path / "driver.log")
    sampler: Any = SimpleNamespace(publish=publish, suspend=suspend, resume=resume)
    config = ServerConfig(home=tmp_path, boot_timeout_s=LIMIT_S, train_timeout_s=LIMIT_S)
    job, limit_s = TrainJob(engine="verl"), publish_timeout_s
    return VerlTrainer(driver, job, BUNDLED_DIRECTORY, config, sampler=sampler, publish_timeout_s=limit_s)


async def train(trainer: VerlTrainer) -> StepReport:
    await trainer.start()
    try:
        return await trainer.train(BATCH)
    finally:
        await trainer.process.stop()


def trained(path: Path, version: int = 1) -> dict[str, Any]:
    path.touch()
    return {"train": {"metrics": {}, "advantages": {}, "version": version, "weights": str(path)}}


async def test_step_is_done_only_when_the_sampler_has_the_weights(tmp_path: Path) -> None:
    told: list[WeightSource] = []

    async def publish(source: WeightSource) -> None:
        await asyncio.sleep(0.05)
        told.append(source)

    report = await train(make_trainer(tmp_path, trained(tmp_path / "v1"), publish))
    assert told == [WeightFile(tmp_path / "v1", 1)]
    assert report.weight_version.version == 1
    assert report.metrics["timing_s/publish_weights"] >= 0.05


@pytest.mark.parametrize("how", ["refuses", "hangs"])
async def test_weights_that_do_not_reach_the_sampler_lose_the_engine(tmp_path: Path, how: str) -> None:
    async def publish(_source: WeightSource) -> None:
        if how == "refuses":
            raise EngineFailure("no replica is left")
        await asyncio.sleep(60)

    with pytest.raises(EngineLost, match="no replica is left" if how == "refuses" else "was not published within"):
        await train(make_trainer(tmp_path, trained(tmp_path / "v1"), publish, publish_timeout_s=0.2))


async def test_broadcast_is_sent_while_the_samplers_wait_for_it(tmp_path: Path) -> None:
    told: list[WeightSource] = []
    meeting = {
        "master_address": "10.0.0.1",
        "master_port": 1234,
        "world_size": 3,
        "tensors": [["a", "bfloat16", [2, 3]], ["b", "int64", [4]]],
    }
    answers = {"train": {"metrics": {}, "advantages": {}, "version": 4, "broadcast": meeting}}

    async def publish(source: WeightSource) -> None:
        told.append(source)

    await train(make_trainer(tmp_path, answers, publish))
    assert told == [WeightBroadcast(4, "10.0.0.1", 1234, 3, ("a", "b"), ("bfloat16", "int64"), ((2, 3), (4,)))]


async def test_sampler_on_the_same_gpus_sleeps_while_the_trainer_works(tmp_path: Path) -> None:
    order: list[str] = []

    def noting(what: str) -> Any:
        async def note(*_args: Any) -> None:
            order.append(what)

        return note

    notes = {what: noting(what) for what in ("publish", "suspend", "resume")}
    await train(make_trainer(tmp_path, trained(tmp_path / "v1"), **notes))
    assert order == ["suspend", "resume", "publish"]


async def test_weights_on_another_host_and_a_trainer_that_was_not_started_are_told_apart(tmp_path: Path) -> None:
    answers = trained(tmp_path / "v1")
    (tmp_path / "v1").unlink()
    with pytest.raises(EngineLost, match="on another host"):
        await train(make_trainer(tmp_path, answers))
    with pytest.raises(EngineFailure, match="not started"):
        await make_trainer(tmp_path, {}).train(BATCH)


def test_servers_of_different_homes_write_in_different_places(tmp_path: Path) -> None:
    assert shared_memory_of(tmp_path / "a") != shared_memory_of(tmp_path / "b")
    assert shared_memory_of(tmp_path / "a") == shared_memory_of(tmp_path / "b" / ".." / "a")


SLEEPERS = """
import subprocess, sys, time
from swarm.backends.verl.driver.reaper import start_reaper
start_reaper()
one = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
two = subprocess.Popen(["sh", "-c", "sleep 300 & sleep 300"], process_group=0)
print("ready", flush=True)
time.sleep(300)
"""


def test_reaper_ends_the_session_of_a_process_that_was_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", SLEEPERS], stdout=subprocess.PIPE, start_new_session=True) as leader:
        assert leader.stdout is not None
        assert leader.stdout.readline() == b"ready\n"
        started = descendants(leader.pid)
        while len(started) < 4:
            started = descendants(leader.pid)
        os.kill(leader.pid, signal.SIGKILL)
    _gone, alive = psutil.wait_procs(started, timeout=LIMIT_S)
    assert [each for each in alive if is_running(each)] == []
