"""With staleness allowed a complete batch is closed at once, and running episodes go on across the update."""

from __future__ import annotations

from typing import Any

import pytest

from swarm.job import TrainJob
from swarm.schemas import EngineState, EpisodeState

pytestmark = pytest.mark.anyio

JOB = TrainJob(engine="fake", batch_size=2, num_repeat=2, drain_timeout_s=60, max_staleness=1)


async def test_a_straggler_neither_delays_the_step_nor_is_lost(host: Any) -> None:
    hosted = host()
    await hosted.start(JOB)
    straggler = await hosted.begin()
    await hosted.call(straggler, "first")
    await hosted.run_batch("one")
    await hosted.wait_for(EngineState.ROLLING, step=1)
    await hosted.call(straggler, "second")
    await hosted.end(straggler, "two-0", 1.0)
    row = await hosted.ledger.episode(straggler.episode_id)
    assert (row.state, row.weight_versions) == (EpisodeState.COMPLETED, (0, 1))
    for task_id, reward in (("two-0", 0.0), ("two-1", 0.0), ("two-1", 1.0)):
        episode = await hosted.begin()
        await hosted.call(episode)
        await hosted.end(episode, task_id, reward)
    await hosted.wait_for(EngineState.ROLLING, step=2)
    row = await hosted.ledger.episode(straggler.episode_id)
    assert row.state is EpisodeState.TRAINED


async def test_an_episode_older_than_allowed_is_dropped_as_stale_and_counted(host: Any) -> None:
    hosted = host()
    await hosted.start(JOB)
    straggler = await hosted.begin()
    await hosted.call(straggler, "first")
    for step in (1, 2):
        await hosted.run_batch(f"batch-{step}")
        await hosted.wait_for(EngineState.ROLLING, step=step)
    await hosted.end(straggler, "late", 1.0)
    await hosted.run_batch("batch-3")
    await hosted.wait_for(EngineState.ROLLING, step=3)
    row = await hosted.ledger.episode(straggler.episode_id)
    assert (row.state, row.outcome) == (EpisodeState.DROPPED, "stale")
    assert (await hosted.server.status()).failures == {"stale": 1}
