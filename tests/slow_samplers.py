"""Servers whose fake sampler takes its time: per token, per weight update, before a step; what it gave is counted."""

from __future__ import annotations

import asyncio
import string
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from itertools import cycle, islice
from pathlib import Path

from swarm.backends.base import Backend, Backends
from swarm.backends.fake import FakeSampler, FakeTrainer, Reply
from swarm.config import ServerConfig
from swarm.job import TrainJob
from swarm.model_path import BUNDLED_DIRECTORY, read_tokenizer
from swarm.types import SamplingParams, StepReport, TokenDelta, TrainBatch

POLL_S = 0.02


@dataclass
class Pace:
    """`steps` counts the tokens that left the sampler, by request. While `last_step` is set, no later one is trained;
    while `stalled_name` is, jobs whose experiment has it in its name get no token."""

    token_delay_s: float = 0.0
    update_s: float = 0.0
    last_step: int | None = None
    stalled_name: str | None = None
    reply: Reply | None = None
    steps: dict[str, int] = field(default_factory=dict[str, int])

    def backends(self) -> Callable[[ServerConfig, Path], Backends]:
        return lambda config, log_path: _PacedBackends(config, log_path, self)


def letters(count: int) -> Reply:
    """So many of them, whatever the prompt."""
    alphabet = read_tokenizer(BUNDLED_DIRECTORY).encode(string.ascii_lowercase, add_special_tokens=False).ids
    ids = list(islice(cycle(alphabet), count))
    return lambda prompt_ids: ids


class _CountingSampler(FakeSampler):
    def __init__(self, pace: Pace, experiment_name: str) -> None:
        super().__init__(reply=pace.reply, token_delay_s=pace.token_delay_s)
        self._pace = pace
        self._experiment_name = experiment_name

    async def generate(
        self, request_id: str, prompt_ids: Sequence[int], params: SamplingParams
    ) -> AsyncGenerator[TokenDelta]:
        self._pace.steps.setdefault(request_id, 0)
        while self._pace.stalled_name is not None and self._pace.stalled_name in self._experiment_name:
            await asyncio.sleep(POLL_S)
        async with aclosing(super().generate(request_id, prompt_ids, params)) as deltas:
            async for delta in deltas:
                self._pace.steps[request_id] += 1
                yield delta


class _PacedTrainer(FakeTrainer):
    def __init__(self, sampler: FakeSampler, job: TrainJob, pace: Pace) -> None:
        super().__init__(sampler, job, step_delay_s=pace.update_s)
        self._pace = pace

    async def train(self, batch: TrainBatch) -> StepReport:
        while self._pace.last_step is not None and batch.step > self._pace.last_step:
            await asyncio.sleep(POLL_S)
        return await super().train(batch)


class _PacedBackends(Backends):
    def __init__(self, config: ServerConfig, log_path: Path, pace: Pace) -> None:
        super().__init__(config, log_path)
        self._pace = pace

    def build(self, job: TrainJob, *, is_fresh: bool) -> Backend:
        sampler = _CountingSampler(self._pace, job.experiment_name)
        built = super().build(job, is_fresh=is_fresh)
        return replace(built, sampler=sampler, trainer=_PacedTrainer(sampler, job, self._pace))
