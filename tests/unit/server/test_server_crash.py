"""A server that crashed goes on at its next start: job, step, weights, half-filled batch and running episodes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from swarm.errors import EpisodeEnded
from swarm.job import TrainJob
from swarm.ledger import BatchState
from swarm.schemas import EngineState, EpisodeState, UpdateBatchPolicyRequest

pytestmark = pytest.mark.anyio

JOB = TrainJob(engine="fake", batch_size=2, num_repeat=2, drain_timeout_s=5)


async def resumed(host: Any) -> Any:
    """The next server, which serves the job that was interrupted."""
    hosted = host()
    assert await hosted.server.resume()
    await hosted.wait_for(EngineState.ROLLING)
    return hosted


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_crash_within_the_training_step_or_before_its_record_trains_the_batch_once(
    host: Any, when: str
) -> None:
    first = host()
    await first.start(JOB)
    getattr(first.backends.gate, when).clear()
    await first.run_batch("one")
    await asyncio.wait_for(first.backends.gate.reached.wait(), 60)
    assert first.sampler.weight_version == (1 if when == "after" else 0)
    await first.crash()
    second = host()
    assert await second.server.resume()
    await second.wait_for(EngineState.ROLLING, step=1)
    batches = await second.ledger.batches()
    assert sorted(batch.state for batch in batches) == [BatchState.FAILED, BatchState.TRAINED]
    trained = await second.ledger.episodes(state=EpisodeState.TRAINED)
    assert len(trained.episodes) == 4
    assert (second.sampler.weight_version, len(second.backends.trained)) == (1, 1)


async def test_a_crash_within_a_checkpoint_falls_back_to_the_one_before(host: Any, tmp_path: Path) -> None:
    first = host()
    await first.start(JOB)
    for step in (1, 2):
        await first.run_batch(f"batch-{step}")
        await first.wait_for(EngineState.ROLLING, step=step)
    checkpoint = await first.server.checkpoint()
    await first.crash()
    for path in tmp_path.rglob("step-000002/*"):
        path.unlink()

    second = await resumed(host)
    assert checkpoint.step == 2
    assert (second.server.lifecycle.weights.step, second.sampler.weight_version) == (2, 2)
    assert [batch.step for batch in second.backends.trained] == [2]


async def test_what_a_command_stopped_or_a_failure_ended_stays_down(host: Any) -> None:
    first = host()
    assert not await first.server.resume()
    await first.start(JOB)
    await first.server.stop_engine()
    await first.crash()
    second = host()
    assert not await second.server.resume()
    assert second.server.lifecycle.state is EngineState.OFFLINE
    await second.start(JOB)
    second.server.shutdown_requested.set()
    await second.server.close()
    second.ledger.close()
    third = host()
    assert not await third.server.resume()


async def test_another_job_is_not_mistaken_for_the_interrupted_one(host: Any) -> None:
    first = host()
    await first.start(JOB)
    episode = await first.begin()
    await first.crash()
    second = host()
    other = JOB.model_copy(update={"batch_size": 3})
    assert not await second.server.resume(other)
    await second.start(other)
    row = await second.ledger.episode(episode.episode_id)
    assert (row.state, row.outcome) == (EpisodeState.EXPIRED, "job_replaced")
    with pytest.raises(EpisodeEnded):
        await second.end(episode, "task", 1.0)


async def test_a_job_that_spells_out_a_default_is_the_one_on_record(host: Any) -> None:
    same = JOB.model_copy(update={"min_group": 2, "lr_warmup_steps": 0})
    first = host()
    await first.start(JOB)
    await first.run_batch("first")
    await first.wait_for(EngineState.ROLLING, step=1)
    await first.server.sync_job(same.model_dump(mode="json"))
    await first.crash()
    second = host()
    assert await second.server.resume(same)
    await second.wait_for(EngineState.ROLLING, step=1)
    await second.server.stop_engine()
    await second.start(same)
    assert second.server.lifecycle.weights.step == 1


async def test_a_policy_that_waited_for_the_next_batch_still_waits_and_one_in_force_still_is(host: Any) -> None:
    first = host()
    await first.start(JOB)
    episodes = first.service.episodes
    await episodes.batch.propose_policy(UpdateBatchPolicyRequest(num_repeat=3))
    await first.run_batch("half", tasks=1)
    await first.crash()

    second = await resumed(host)
    policies = second.service.episodes.batch.policies()
    assert (policies.active.num_repeat, policies.next and policies.next.num_repeat) == (2, 3)
    await second.run_batch("other", tasks=1)
    await second.wait_for(EngineState.ROLLING, step=1)
    await second.crash()

    third = await resumed(host)
    policies = third.service.episodes.batch.policies()
    assert (policies.active.num_repeat, policies.next) == (3, None)
