"""The local trainer as the training loop sees it: a handle on the worker process that holds the model.

Place in the flow: implements `Trainer`; the worker trains, in learner.py. This module also builds the pair of sampler
and trainer that share a worker. It knows nothing of tensors, so that the server process loads none of the tensor stack.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from swarm.backends.local.sampler import LocalLimits, LocalSampler
from swarm.backends.process.wire import pack_batch
from swarm.backends.process.worker_process import WorkerProcess
from swarm.config import ServerConfig
from swarm.job import TrainJob
from swarm.types import StepReport, TrainBatch, WeightVersion

CHECKPOINT_TIMEOUT_S = 600.0
"""Time to write or read the largest model that fits on one machine, on a slow disk."""


class LocalTrainer:
    """Implementation of `swarm.trainer.base.Trainer` on the worker process of a started `LocalSampler`."""

    def __init__(self, worker: WorkerProcess, *, train_timeout_s: float) -> None:
        self._worker = worker
        self._train_timeout_s = train_timeout_s

    async def train(self, batch: TrainBatch) -> StepReport:
        answer = await self._worker.call("train", pack_batch(batch), timeout_s=self._train_timeout_s)
        return StepReport(
            batch_id=batch.batch_id,
            step=batch.step,
            weight_version=WeightVersion(version=answer["version"], step=batch.step, published_at=time.time()),
            metrics=answer["metrics"],
            advantages=answer["advantages"],
        )

    async def save(self, directory: Path) -> None:
        await self._worker.call("save", str(directory.resolve()), timeout_s=CHECKPOINT_TIMEOUT_S)

    async def load(self, directory: Path) -> WeightVersion:
        step, version = await self._worker.call("restore", str(directory.resolve()), timeout_s=CHECKPOINT_TIMEOUT_S)
        return WeightVersion(version=version, step=step, published_at=time.time())


def build_worker(config: ServerConfig, log_path: Path) -> WorkerProcess:
    """Return a worker process, not yet started. It outlives jobs; an early start hides the import of its libraries."""
    return WorkerProcess(
        [sys.executable, "-m", "swarm.backends.local.worker"],
        log_path,
        {
            "OMP_NUM_THREADS": str(config.torch_threads or 1),
            "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_OFFLINE": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
        },
    )


def build_local(
    job: TrainJob,
    config: ServerConfig,
    worker: WorkerProcess,
    sampling_seed: Callable[[], Sequence[int]] | None = None,
) -> tuple[LocalSampler, LocalTrainer]:
    """Return sampler and trainer of one job on a worker that outlives them. The caller stops the worker."""
    limits = LocalLimits(
        max_running_requests=config.max_running_requests,
        torch_threads=config.torch_threads,
        max_torch_threads=config.max_torch_threads,
        boot_timeout_s=config.boot_limit_s("local"),
    )
    return LocalSampler(worker, job, limits, sampling_seed), LocalTrainer(
        worker, train_timeout_s=config.train_timeout_s
    )
