"""Weights come back bit for bit: the newest usable checkpoint, then the recorded batches once more."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from swarm.backends.local.engine import LocalSampler, build_local, build_worker
from swarm.backends.pairing import ProcessTrainer
from swarm.backends.process.worker_process import WorkerProcess
from swarm.config import ServerConfig
from swarm.errors import CheckpointError, NotFound
from swarm.job import TrainJob
from swarm.ledger import BatchRow, Ledger
from swarm.sampler import EngineLost
from swarm.trainer.checkpoints import RunCheckpoints
from swarm.trainer.recovery import Recovery
from swarm.types import FinishedEpisode, Group, Sample, SamplingParams, StepReport, TrainBatch


@pytest.fixture(scope="module", autouse=True)
def late_imports() -> None:
    global torch
    import torch


pytestmark = pytest.mark.anyio

LIMIT_S = 60
STEPS = 4
PROMPT = (40, 41, 42, 43)
JOB = TrainJob(lr=1e-3, ppo_epochs=2, mini_batch_num=2, lr_warmup_steps=3, weight_decay=0.01, use_kl_loss=True)
LORA = JOB.model_copy(update={"lora_rank": 4, "enable_gradient_checkpointing": True})


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@dataclass
class Trained:
    """A run of STEPS steps with checkpoints of steps 2 and 4, and its weights at the end in `final`."""

    sampler: LocalSampler
    trainer: ProcessTrainer
    worker: WorkerProcess
    job: TrainJob
    final: Path

    batches: dict[str, TrainBatch] = field(default_factory=dict[str, TrainBatch])
    reports: dict[str, StepReport] = field(default_factory=dict[str, StepReport])

    @property
    def weights(self) -> str:
        """The file of a checkpoint that holds them."""
        return "adapter_model.safetensors" if self.job.lora_rank else "model.safetensors"

    async def record_in(self, home: Path) -> Recovery:
        ledger = Ledger.open(home / "ledger.db")
        given = self.job.model_dump(mode="json")
        await ledger.record_job(given, given)
        for batch in self.batches.values():
            await ledger.close_batch(batch.batch_id, batch.step, [], [])
            await ledger.finish_batch(self.reports[batch.batch_id])
        return Recovery(ledger, self.trainer, RunCheckpoints(home), self.read, train_timeout_s=LIMIT_S)

    async def read(self, row: BatchRow) -> TrainBatch:
        return self.batches[row.batch_id]


@pytest.fixture(scope="module", params=[JOB, pytest.param(LORA, marks=pytest.mark.slow)], ids=["full", "lora"])
async def trained(
    request: pytest.FixtureRequest, anyio_backend: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Trained]:
    directory = tmp_path_factory.mktemp("trained")
    worker = build_worker(ServerConfig(), directory / "worker.log")
    sampler, trainer = build_local(request.param, ServerConfig(), worker)
    run = Trained(sampler, trainer, worker, request.param, directory / "step-4")
    async with asyncio.timeout(LIMIT_S):
        await sampler.start()
        for step in range(1, STEPS + 1):
            batch = await make_batch(sampler, step)
            run.batches[batch.batch_id] = batch
            run.reports[batch.batch_id] = await trainer.train(batch)
            if step % 2 == 0:
                await trainer.save(directory / f"step-{step}")
    yield run
    await worker.stop()


@pytest.fixture
async def recovery(trained: Trained, tmp_path: Path) -> AsyncIterator[Recovery]:
    async with asyncio.timeout(LIMIT_S):
        await trained.sampler.start()
    recovery = await trained.record_in(tmp_path)
    yield recovery
    recovery.ledger.close()


async def make_batch(sampler: LocalSampler, step: int) -> TrainBatch:
    groups: list[Group] = []
    for task in range(2):
        episodes = [await make_episode(sampler, f"{step}-{task}-{repeat}", repeat) for repeat in range(3)]
        groups.append(Group(f"task-{task}", tuple(episodes)))
    return TrainBatch(f"batch-{step}", step, tuple(groups))


async def make_episode(sampler: LocalSampler, name: str, repeat: int) -> FinishedEpisode:
    params = SamplingParams(max_tokens=8, seed=repeat)
    deltas = [delta async for delta in sampler.generate(name, PROMPT, params)]
    tokens = tuple(token for delta in deltas for token in delta.token_ids_T)
    read, sampled = len(PROMPT), len(tokens)
    sample = Sample(
        episode_id=name,
        token_ids_T=PROMPT + tokens,
        loss_mask_T=(False,) * read + (True,) * sampled,
        logprobs_T=(0.0,) * read + tuple(value for delta in deltas for value in delta.logprobs_T),
        weight_versions_T=(-1,) * read + tuple(value for delta in deltas for value in delta.weight_versions_T),
        turn_indices_T=(-1,) * read + (0,) * sampled,
        temperatures_T=(1.0,) * (read + sampled),
    )
    return FinishedEpisode(name, "task", "client", float(repeat % 2), None, (sample,), 0.0)


def checkpoint_at(trained: Trained, recovery: Recovery, step: int) -> Path:
    place = recovery.checkpoints.place(step, kept=False)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(trained.final.with_name(f"step-{step}"), target_is_directory=True)
    return place


async def expect_final_weights(trained: Trained, recovery: Recovery, *, replayed: int, directory: Path) -> None:
    async with asyncio.timeout(LIMIT_S):
        recovered = await recovery.restore(STEPS)
        await trained.trainer.save(directory)
    assert (recovered.weights.step, recovered.weights.version, recovered.replayed) == (STEPS, STEPS, replayed)
    assert (directory / trained.weights).read_bytes() == (trained.final / trained.weights).read_bytes()
    states = [torch.load(path / "trainer_state.pt", weights_only=True) for path in (directory, trained.final)]
    assert states[0]["steps_done"] == states[1]["steps_done"] == STEPS
    moments, expected = (state["optimizer"]["adamw"] for state in states)
    assert moments.keys() == expected.keys() and moments
    for key, values in expected.items():
        for name, value in values.items():
            assert torch.equal(moments[key][name], value), (key, name)


async def test_replay_from_the_base_model(trained: Trained, recovery: Recovery, tmp_path: Path) -> None:
    await expect_final_weights(trained, recovery, replayed=4, directory=tmp_path / "again")


async def test_replay_from_a_checkpoint(trained: Trained, recovery: Recovery, tmp_path: Path) -> None:
    checkpoint_at(trained, recovery, 2)
    await expect_final_weights(trained, recovery, replayed=2, directory=tmp_path / "again")


async def test_a_checkpoint_of_the_last_step_needs_no_replay(
    trained: Trained, recovery: Recovery, tmp_path: Path
) -> None:
    checkpoint_at(trained, recovery, 2)
    checkpoint_at(trained, recovery, 4)
    await expect_final_weights(trained, recovery, replayed=0, directory=tmp_path / "again")


async def test_a_run_that_began_at_a_checkpoint_is_replayed_from_there(
    trained: Trained, recovery: Recovery, tmp_path: Path
) -> None:
    began = replace(recovery, resume_from=trained.final.with_name("step-2"), initial_step=2)
    await expect_final_weights(trained, began, replayed=2, directory=tmp_path / "again")
    with pytest.raises(NotFound, match="began at step 2"):
        await began.require_way_to(1)


async def test_a_run_whose_first_checkpoint_is_gone_or_another_one_is_not_begun_anew(
    trained: Trained, recovery: Recovery, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=r"resume_from: .*cannot be read"):
        await replace(recovery, resume_from=tmp_path / "gone", initial_step=2).restore(STEPS)
    with pytest.raises(CheckpointError, match="is of step 4 now, and the run began at step 2"):
        await replace(recovery, resume_from=trained.final, initial_step=2).restore(STEPS)
    assert [row.step for row in await recovery.ledger.trained_batches(0)] == [1, 2, 3, 4]


async def test_a_killed_worker_costs_no_bit_of_the_weights(
    trained: Trained, recovery: Recovery, tmp_path: Path
) -> None:
    checkpoint_at(trained, recovery, 2)
    assert trained.worker.pid is not None
    os.kill(trained.worker.pid, signal.SIGKILL)
    async with asyncio.timeout(LIMIT_S):
        await trained.worker.exited.wait()
        await trained.sampler.start()
    await expect_final_weights(trained, recovery, replayed=2, directory=tmp_path / "again")


async def test_a_torn_checkpoint_is_skipped_with_a_warning(
    trained: Trained, recovery: Recovery, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint_at(trained, recovery, 2)
    torn = recovery.checkpoints.place(4, kept=True)
    torn.mkdir(parents=True)
    (torn / trained.weights).write_bytes((trained.final / trained.weights).read_bytes()[:1000])
    with caplog.at_level(logging.WARNING):
        await expect_final_weights(trained, recovery, replayed=2, directory=tmp_path / "again")
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

    broken = Recovery(recovery.ledger, recovery.trainer, recovery.checkpoints, read, LIMIT_S)
    recovered = await broken.restore(STEPS)
    assert (recovered.weights.step, recovered.wanted_step, recovered.replayed) == (2, STEPS, 2)
    assert [row.step for row in await recovery.ledger.trained_batches(0)] == [1, 2]


async def test_a_worker_that_dies_in_the_replay_is_not_the_batch_s_fault(trained: Trained, recovery: Recovery) -> None:
    async def kill(row: BatchRow) -> TrainBatch:
        await trained.worker.stop()
        return trained.batches[row.batch_id]

    dying = Recovery(recovery.ledger, recovery.trainer, recovery.checkpoints, kill, LIMIT_S)
    with pytest.raises(EngineLost):
        await dying.restore(STEPS)
    assert len(await recovery.ledger.trained_batches(0)) == STEPS
