"""A real server whose sampler and trainer are simulated: they take the time that a `Cluster` says, and learn nothing.

Place in the flow: a process that bench/scale_live.py starts. Gateway, ledger, pool, training loop and HTTP are those of
`swarm start`; sampler and trainer are the fake ones with a clock. What they measure leaves as metrics of each step.
"""

from __future__ import annotations

import asyncio
import json
import string
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from typing import Annotated

import typer

from bench.scale.setup import Cluster
from swarm.backends.base import Backend, Backends
from swarm.backends.fake.sampler import FakeSampler
from swarm.backends.fake.trainer import FakeTrainer
from swarm.batch.eligibility import version_span
from swarm.config import ServerConfig
from swarm.job import TrainJob
from swarm.model_path import BUNDLED_DIRECTORY, read_tokenizer
from swarm.server.http import serve
from swarm.types import SamplingParams, StepReport, TokenDelta, TrainBatch

CATCH_UP_S = 0.05
"""A token that came late by a busy event loop is made up for; one that waited for weights is not."""
LONGEST_REPLY = 2_000
"""Tokens: every reply goes on until `max_tokens`, which the client sets, ends it."""


class PacedSampler(FakeSampler):
    """A sampler that gives tokens as fast as the evenly loaded replicas of a cluster would.

    `tokens`, `calls` and `busy_s` (the time of all calls from here to their last token) only grow.
    """

    def __init__(self, cluster: Cluster) -> None:
        alphabet = read_tokenizer(BUNDLED_DIRECTORY).encode(string.ascii_lowercase, add_special_tokens=False).ids
        reply = list(islice(cycle(alphabet), LONGEST_REPLY))
        super().__init__(reply=lambda prompt_ids: reply)
        self.tokens, self.calls, self.busy_s = 0, 0, 0.0
        self._cluster = cluster
        self._open = 0
        self._slots = asyncio.Semaphore(cluster.replicas * cluster.max_num_seqs)

    async def generate(
        self, request_id: str, prompt_ids: Sequence[int], params: SamplingParams
    ) -> AsyncGenerator[TokenDelta]:
        came = time.perf_counter()
        self._open += 1
        try:
            async with self._slots, aclosing(super().generate(request_id, prompt_ids, params)) as deltas:
                due = came
                async for delta in deltas:
                    now = time.perf_counter()
                    due = max(due, now - CATCH_UP_S) + self._cluster.token_s_at(self._open / self._cluster.replicas)
                    await asyncio.sleep(due - now)
                    self.tokens += 1
                    if delta.finish_reason is not None:
                        self.calls += 1
                        self.busy_s += time.perf_counter() - came
                    yield delta
        finally:
            self._open -= 1


class PacedTrainer(FakeTrainer):
    """A trainer that works beside the samplers, which stand still only while weights are published."""

    def __init__(self, sampler: PacedSampler, job: TrainJob, cluster: Cluster) -> None:
        super().__init__(sampler, job, step_delay_s=cluster.publish_s)
        self._sampler, self._cluster = sampler, cluster

    async def train(self, batch: TrainBatch) -> StepReport:
        train_s = self._cluster.train_s(sum(episode.trained_tokens for episode in batch.episodes))
        await asyncio.sleep(train_s)
        spans = [span for episode in batch.episodes if (span := version_span(episode)) is not None]
        staleness = [self._sampler.weight_version - span.oldest for span in spans]
        report = await super().train(batch)
        measured = {
            "scale/train_s": train_s,
            "scale/staleness_mean": sum(staleness) / len(staleness),
            "scale/staleness_max": float(max(staleness)),
            "scale/tokens": float(self._sampler.tokens),
            "scale/calls": float(self._sampler.calls),
            "scale/busy_s": self._sampler.busy_s,
        }
        return replace(report, metrics={**report.metrics, **measured})


class PacedBackends(Backends):
    def __init__(self, config: ServerConfig, log_path: Path, cluster: Cluster) -> None:
        super().__init__(config, log_path)
        self._cluster = cluster

    def build(self, job: TrainJob, *, is_fresh: bool) -> Backend:
        sampler = PacedSampler(self._cluster)
        backend = super().build(job, is_fresh=is_fresh)
        return replace(backend, sampler=sampler, trainer=PacedTrainer(sampler, job, self._cluster))


def main(
    cluster: Annotated[str, typer.Argument(help="The fields of a Cluster, as JSON.")],
    home: Annotated[Path, typer.Option(help="Where the ledger lies.")],
) -> None:
    """Serve on a free port until terminated; the address is printed as one line of JSON."""
    paces = Cluster(**json.loads(cluster))
    config = ServerConfig(port=0, home=home)
    asyncio.run(
        serve(
            config,
            None,
            lambda url: print(json.dumps({"url": url}), flush=True),
            build_backends=lambda config, log_path: PacedBackends(config, log_path, paces),
        )
    )


if __name__ == "__main__":
    typer.run(main)
