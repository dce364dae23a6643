"""Weights come back bit for bit: the newest usable checkpoint, then the recorded batches once more."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from contract.test_trainer_contract import make_batch
from local_runs import LocalRun, assert_same_checkpoint, local_run

from swarm.errors import CheckpointError, NotFound
from swarm.ledger import BatchRow, Ledger
from swarm.sampler import EngineLost
from swarm.trainer.checkpoints import RunCheckpoints
from swarm.trainer.recovery import Recovery
from swarm.types import StepReport, TrainBatch

pytestmark = pytest.mark.anyio

LIMIT_S = 60
STEPS = 4
JOB: dict[str, Any] = {
    "lr": 1e-3, "ppo_epochs": 2, "mini_batch_num": 2, "lr_warmup_steps": 3, "weight_decay": 0.01, "use_kl_loss": True,
}  # fmt: skip
LORA: dict[str, Any] = {**JOB, "lora_rank": 4, "enable_gradient_checkpointing": True}


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@dataclass
class Trained:
    """A run of STEPS steps with checkpoints of steps 2 and 4, and its weights at the end in `final`."""

    run: LocalRun
    final: Path
    batches: dict[str, TrainBatch] = field(default_factory=dict[str, TrainBatch])
    reports: dict[str, StepReport] = field(default_factory=dict[str, StepReport])

    async def record_in(self, home: Path) -> Recovery:
        ledger = Ledger.open(home / "ledger.db")
        given = self.run.job.model_dump(mode="json")
        await ledger.record_job(given, given)
        for batch in self.batches.values():
            await ledger.close_batch(batch.batch_id, batch.step, [], [])
            await ledger.finish_batch(self.reports[batch.batch_id])
        return Recovery(ledger, self.run.trainer, RunCheckpoints(home), self.read, train_timeout_s=LIMIT_S)

    async def read(self, row: BatchRow) -> TrainBatch:
        return self.batches[row.batch_id]


@pytest.fixture(scope="module", params=[JOB, pytest.param(LORA, marks=pytest.mark.slow)], ids=["full", "lora"])
async def trained(
    request: pytest.FixtureRequest, anyio_backend: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Trained]:
    directory = tmp_path_factory.mktemp("trained")
    async with local_run(directory, **request.param) as run:
        trained = Trained(run, directory / "step-4")
        async with asyncio.timeout(LIMIT_S):
            for step in range(1, STEPS + 1):
                batch = await make_batch(run.sampler, step)
                trained.batches[batch.batch_id] = batch
                trained.reports[batch.batch_id] = await run.trainer.train(batch)
                if step % 2 == 0:
                    await run.trainer.save(directory / f"step-{step}")
        yield trained


@pytest.fixture
async def recovery(trained: Trained, tmp_path: Path) -> AsyncIterator[Recovery]:
    async with asyncio.timeout(LIMIT_S):
        await trained.run.sampler.start()
    recovery = await trained.record_in(tmp_path)
    yield recovery
    recovery.ledger.close()


def checkpoint_at(trained: Trained, recovery: Recovery, step: int) -> None:
    place = recovery.checkpoints.place(step, kept=False)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(trained.final.with_name(f"step-{step}"), target_is_directory=True)


async def expect_final_weights(trained: Trained, recovery: Recovery, replayed: int) -> None:
    again = recovery.checkpoints.directory / "again"
    async with asyncio.timeout(LIMIT_S):
        recovered = await recovery.restore(STEPS)
        await trained.run.trainer.save(again)
    assert (recovered.weights.step, recovered.weights.version, recovered.replayed) == (STEPS, STEPS, replayed)
    assert_same_checkpoint(again, trained.final)


@pytest.mark.parametrize(("steps", "replayed"), [((), 4), ((2,), 2), ((2, 4), 0)], ids=str)
async def test_batches_since_the_newest_checkpoint_are_replayed(
    trained: Trained, recovery: Recovery, steps: tuple[int, ...], replayed: int
) -> None:
    for step in steps:
        checkpoint_at(trained, recovery, step)
    await expect_final_weights(trained, recovery, replayed)


async def test_a_run_that_began_at_a_checkpoint_is_replayed_from_there_and_not_begun_anew_without_it(
    trained: Trained, recovery: Recovery, tmp_path: Path
) -> None:
    for place, reason in (
        (tmp_path / "gone", r"resume_from: .*cannot be read"),
        (trained.final, "is of step 4 now, and the run began at step 2"),
    ):
        with pytest.raises(CheckpointError, match=reason):
            await replace(recovery, resume_from=place, initial_step=2).restore(STEPS)
    assert [row.step for row in await recovery.ledger.trained_batches(0)] == [1, 2, 3, 4]
    began = replace(recovery, resume_from=trained.final.with_name("step-2"), initial_step=2)
    await expect_final_weights(trained, began, replayed=2)
    with pytest.raises(NotFound, match="began at step 2"):
        await began.require_way_to(1)


async def test_neither_a_killed_worker_nor_a_torn_checkpoint_costs_a_bit_of_the_weights(
    trained: Trained, recovery: Recovery, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint_at(trained, recovery, 2)
    torn = recovery.checkpoints.place(4, kept=True)
    torn.mkdir(parents=True)
    [weights] = trained.final.glob("*model.safetensors")
    (torn / weights.name).write_bytes(weights.read_bytes()[:1000])
    worker = trained.run.worker
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    async with asyncio.timeout(LIMIT_S):
        await worker.exited.wait()
        await trained.run.sampler.start()
    with caplog.at_level(logging.WARNING):
        await expect_final_weights(trained, recovery, replayed=2)
    assert "not a complete checkpoint" in caplog.text


async def test_an_earlier_step_is_reached_the_same_way(trained: Trained, recovery: Recovery) -> None:
    checkpoint_at(trained, recovery, 4)
    recovered = await recovery.restore(3)
    assert (recovered.weights.step, recovered.replayed) == (3, 3)


async def test_a_batch_that_cannot_be_read_ends_the_way_and_the_ledger_says_so(
    trained: Trained, recovery: Recovery
) -> None:
    async def read(row: BatchRow) -> TrainBatch:
        if row.step == 3:
            raise ValueError("a hole")
        return trained.batches[row.batch_id]

    recovered = await replace(recovery, read_batch=read).restore(STEPS)
    assert (recovered.weights.step, recovered.wanted_step, recovered.replayed) == (2, STEPS, 2)
    assert [row.step for row in await recovery.ledger.trained_batches(0)] == [1, 2]


async def test_a_worker_that_dies_in_the_replay_is_not_the_batch_s_fault(trained: Trained, recovery: Recovery) -> None:
    async def kill(row: BatchRow) -> TrainBatch:
        await trained.run.worker.stop()
        return trained.batches[row.batch_id]

    with pytest.raises(EngineLost):
        await replace(recovery, read_batch=kill).restore(STEPS)
    assert len(await recovery.ledger.trained_batches(0)) == STEPS
