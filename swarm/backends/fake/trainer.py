"""A trainer without weights: every step publishes the next version to its fake sampler.

Place in the flow: replaces the local trainer in load tests, in the check of new client code, and in tests. It learns
nothing. Its advantages are rewards minus the mean of the group, and its metrics have plausible values.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from swarm.backends.fake.sampler import FakeSampler
from swarm.errors import CheckpointError, EngineFailure
from swarm.job import TrainJob
from swarm.trainer.manifest import MANIFEST, describe_file
from swarm.types import StepReport, TrainBatch, WeightVersion

STATE_FILE = "fake_trainer.json"
FORMAT = "fake-1"


class FakeTrainer:
    """Implementation of `swarm.trainer.base.Trainer` without weights.

    The step numbered `fail_at_step` raises EngineFailure each time.
    """

    def __init__(
        self, sampler: FakeSampler, job: TrainJob, *, step_delay_s: float = 0.0, fail_at_step: int | None = None
    ) -> None:
        self._sampler = sampler
        self._job = job
        self._step_delay_s = step_delay_s
        self._fail_at_step = fail_at_step
        self._step = 0

    async def train(self, batch: TrainBatch) -> StepReport:
        async with self._sampler.weight_change():
            await asyncio.sleep(self._step_delay_s)
            if batch.step == self._fail_at_step:
                raise EngineFailure(f"fake failure at step {batch.step}")
            self._sampler.weight_version += 1
        self._step = batch.step
        rewards = [episode.reward for episode in batch.episodes]
        mean = sum(rewards) / len(rewards)
        return StepReport(
            batch_id=batch.batch_id,
            step=batch.step,
            weight_version=self._version(),
            metrics={
                "critic/score/mean": mean,
                "critic/score/std": math.sqrt(sum((reward - mean) ** 2 for reward in rewards) / len(rewards)),
                "actor/pg_loss": 0.0,
                "actor/grad_norm": 1.0 / (1 + batch.step),
                "actor/entropy": 1.0,
                "actor/ppo_kl": 0.0,
                "actor/trained_tokens": float(sum(episode.trained_tokens for episode in batch.episodes)),
            },
            advantages=_centred_rewards(batch),
        )

    async def save(self, directory: Path) -> None:
        state = {"step": self._step, "weight_version": self._sampler.weight_version}
        try:
            directory.mkdir(parents=True, exist_ok=True)
            _write_whole(directory / STATE_FILE, state)
            files = {STATE_FILE: describe_file(directory / STATE_FILE)}
            job = self._job.resolve().model_dump(mode="json")
            _write_whole(directory / MANIFEST, {"format": FORMAT, **state, "job": job, "files": files})
        except OSError as error:
            raise CheckpointError(f"{directory}: cannot be written: {error.strerror}") from error

    async def load(self, directory: Path) -> WeightVersion:
        path = directory / STATE_FILE
        try:
            state = json.loads(path.read_text(encoding="utf-8"))
            step, version = int(state["step"]), int(state["weight_version"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{path}: not a checkpoint of the fake trainer: {error}") from error
        async with self._sampler.weight_change():
            self._step, self._sampler.weight_version = step, version
        return self._version()

    def _version(self) -> WeightVersion:
        return WeightVersion(version=self._sampler.weight_version, step=self._step, published_at=time.time())


def _write_whole(path: Path, content: Mapping[str, Any]) -> None:
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(json.dumps(content), encoding="utf-8")
    os.replace(partial, path)


def _centred_rewards(batch: TrainBatch) -> dict[str, float]:
    """Return a map from episode id to the reward minus the mean reward of its group."""
    centred: dict[str, float] = {}
    for group in batch.groups:
        mean = sum(episode.reward for episode in group.episodes) / len(group.episodes)
        centred.update({episode.episode_id: episode.reward - mean for episode in group.episodes})
    return centred
