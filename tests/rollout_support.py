"""Episodes of one job on real parts (ledger, pool, lifecycle) without a server, and short names for what tests do."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turns import plain_turn

from swarm.batch import BatchPool
from swarm.batch.policy import BatchPolicy
from swarm.job import TrainJob
from swarm.ledger import EndReceipt, Ledger, RecordedEpisode
from swarm.live_settings import JobTimeline
from swarm.rollout.episodes import BegunEpisode, Episodes
from swarm.run.lifecycle import EngineLifecycle
from swarm.run.running_job import RunningJob
from swarm.sampler import SamplerInfo
from swarm.schemas import BeginEpisodeRequest, EndEpisodeRequest, EngineState
from swarm.types import ForkReason, SamplingParams, Turn

INFO = SamplerInfo(model="fake", tokenizer_path="", context_length=64, parameters=0, device="none")


@dataclass
class Stage:
    """The episodes of a rolling engine, whose expiry runs."""

    episodes: Episodes
    pool: BatchPool
    ledger: Ledger
    lifecycle: EngineLifecycle

    async def begin(self, **request: Any) -> BegunEpisode:
        return await self.episodes.begin(BeginEpisodeRequest.model_validate({"wait_s": 0, **request}))

    async def begin_waiting(self, **request: Any) -> asyncio.Task[BegunEpisode]:
        """A begin that waits: it has taken its place when this returns."""
        waiting = asyncio.create_task(self.begin(wait_s=20, **request))
        await asyncio.sleep(0.02)
        assert not waiting.done(), "it was let in"
        return waiting

    async def call(self, episode: BegunEpisode, **changes: Any) -> Turn:
        """One model call of an episode, as the gateway records it."""
        running = self.episodes.authorize(episode.api_key)
        turn = sampled_turn(episode.episode_id, len(running.tree.turns), **changes)
        running.tree.add(turn)
        await self.ledger.add_turns([turn])
        return turn

    async def end(self, episode_id: str, **request: Any) -> EndReceipt:
        body = {"task_id": "task", "reward": 1.0, **request}
        return await self.episodes.end(episode_id, EndEpisodeRequest.model_validate(body))

    async def finish(self, *, reward: float = 1.0, task_id: str = "task", **begin: Any) -> str:
        """A whole episode of one call."""
        episode = await self.begin(**begin)
        await self.call(episode)
        await self.end(episode.episode_id, reward=reward, task_id=task_id)
        return episode.episode_id

    async def close_batch(self) -> list[str]:
        """What the training loop does between two batches, without the training. Returns the members."""
        await self.lifecycle.move(EngineState.DRAINING)
        step = self.lifecycle.weights.step + 1
        closed = self.episodes.close_batch(batch_id=f"batch-{step}-{time.time()}", step=step)
        groups = [[episode.episode_id for episode in group.members] for group in closed.batch.groups]
        dropped = [(drop.episode_id, drop.reason) for drop in closed.dropped]
        await self.ledger.close_batch(closed.batch.batch_id, step, groups, dropped)
        self.episodes.confirm(closed.batch)
        await self.lifecycle.move(EngineState.ROLLING)
        return [episode.episode_id for episode in closed.batch.members]


def sampled_turn(episode_id: str, index: int, **changes: Any) -> Turn:
    fields: dict[str, Any] = {
        "episode_id": episode_id,
        "prompt_ids": (1, 2, 10 + index),
        "output_ids": (4, 5),
        "logprobs_T": (-0.5, -0.25),
        "weight_versions_T": (0, 0),
        "params": SamplingParams(max_tokens=8),
        "messages": ({"role": "user", "content": f"turn {index}"},),
        "reply": {"role": "assistant", "content": "ho"},
        "fork_reason": ForkReason.NEW_CONVERSATION,
        "call_id": f"call-{index}",
        "request_sha256": f"request-{index}",
    }
    return plain_turn(index, **{**fields, **changes})


@contextlib.asynccontextmanager
async def rolling(home: Path, *, max_running: int = 100, **job: Any) -> AsyncIterator[Stage]:
    """A new run on a new ledger, or the interrupted run of the ledger that is there."""
    settings = TrainJob.model_validate({"engine": "fake", "batch_size": 2, "num_repeat": 2, **job})
    with contextlib.closing(Ledger.open(home / "ledger.db")) as ledger:
        running = await _open_run(ledger, settings)
        lifecycle = EngineLifecycle(ledger.record_state)
        await lifecycle.move(EngineState.BOOTING)
        pool = BatchPool(BatchPolicy.of(settings), weight_version=0)
        episodes = Episodes(
            running_job=RunningJob(JobTimeline(settings), ledger.record_change),
            info=INFO,
            pool=pool,
            ledger=ledger,
            lifecycle=lifecycle,
            max_running=max_running,
        )
        episodes.restore(running)
        await lifecycle.move(EngineState.ROLLING)
        expiry = asyncio.create_task(episodes.expire_forever())
        try:
            yield Stage(episodes, pool, ledger, lifecycle)
            assert not expiry.done(), expiry.exception()
        finally:
            expiry.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await expiry


async def _open_run(ledger: Ledger, job: TrainJob) -> Sequence[RecordedEpisode]:
    """The episodes that an interrupted run left running."""
    if await ledger.latest_job() is not None:
        return (await ledger.recover("server_restarted")).running
    await ledger.record_job(job.model_dump(mode="json"), job.resolve().model_dump(mode="json"))
    return ()


async def eventually(condition: Any, timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s"
        await asyncio.sleep(0.01)
