"""However a process of the trainer dies, it is reported at once, nothing is left running, and a new start works."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from process_support import command_of, is_running
from verl_batches import make_batch

from swarm.backends.pairing import shared_memory_of
from swarm.sampler import EngineLost


@pytest.fixture(scope="module", autouse=True)
def late_imports() -> None:
    global own_directory
    from swarm.backends.verl.driver.cluster import own_directory


pytestmark = [pytest.mark.anyio, pytest.mark.verl, pytest.mark.timeout(900), pytest.mark.begins_first]

OpenTrainer = Callable[..., Awaitable[Any]]
NOTICE_S = 120
"""Within which a death must be reported, and everything that was started must be gone."""


def family(pid: int | None) -> list[psutil.Process]:
    """The driver with Ray's daemons and all workers."""
    driver = psutil.Process(pid)
    found = [driver, *driver.children(recursive=True)]
    assert len(found) > 5
    return found


def named(processes: list[psutil.Process], text: str) -> psutil.Process:
    return next(each for each in processes if text in " ".join(command_of(each)))


async def gone(processes: list[psutil.Process]) -> None:
    _gone, alive = await asyncio.to_thread(psutil.wait_procs, processes, NOTICE_S)
    assert [each for each in alive if is_running(each)] == []


async def test_death_of_a_training_process_or_of_ray_is_reported_at_once_and_a_new_start_goes_on(
    open_trainer: OpenTrainer, tmp_path: Path
) -> None:
    running = await open_trainer(ranks=2)
    await running.trainer.train(make_batch(step=1))
    await running.trainer.save(tmp_path / "checkpoint")
    processes = family(running.driver.pid)
    named(processes, "ray::WorkerDict").send_signal(signal.SIGKILL)
    with pytest.raises(EngineLost, match="training process"):
        async with asyncio.timeout(NOTICE_S):
            await running.trainer.train(make_batch(step=2))
    await gone(processes)
    assert list(shared_memory_of(running.home).iterdir()) == running.published.files

    await running.trainer.start()
    assert list(shared_memory_of(running.home).iterdir()) == [], "weights of a dead driver are swept"
    restored = await running.trainer.load(tmp_path / "checkpoint")
    assert (restored.step, restored.version) == (1, 1)
    report = await running.trainer.train(make_batch(step=2))
    assert report.weight_version.version == 2
    assert running.published.versions == [1, 1, 2]

    processes, exited = family(running.driver.pid), running.driver.exited
    named(processes, "raylet/raylet").send_signal(signal.SIGKILL)
    async with asyncio.timeout(NOTICE_S):
        await exited.wait()
    await gone(processes)
    with pytest.raises(EngineLost):
        await running.trainer.train(make_batch(step=3))


async def test_driver_leaves_nothing_whether_it_is_killed_or_ended_in_order(open_trainer: OpenTrainer) -> None:
    killed, ended = await asyncio.gather(open_trainer("killed"), open_trainer("ended"))
    await ended.trainer.train(make_batch(step=1))
    processes = [*family(killed.driver.pid), *family(ended.driver.pid)]
    os.kill(killed.driver.pid, signal.SIGKILL)
    await ended.driver.stop()
    await gone(processes)
    assert not shared_memory_of(ended.home).exists()
    assert not own_directory(ended.home).exists()
