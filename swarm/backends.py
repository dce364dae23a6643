"""The engine and trainer that a job names, and the one worker process that outlives jobs.

Place in the flow: used by server.py when a job starts. It knows which class stands behind `job.engine`, and nothing of
states, episodes or batches.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from swarm.config import ServerConfig, TrainJob
from swarm.engine.base import Engine
from swarm.engine.fake import FakeEngine
from swarm.engine.local.process import WorkerProcess
from swarm.trainer.base import Trainer
from swarm.trainer.fake import FakeTrainer
from swarm.trainer.local.trainer import build_local, build_worker

FAKE_CONTEXT_LENGTH = 4096


class Backends:
    """Builds backends for one job after another. The local worker is started by the first job that needs it and kept:
    the next job then skips the import of its libraries, which takes seconds."""

    def __init__(self, config: ServerConfig, log_path: Path) -> None:
        self._config = config
        self._worker: WorkerProcess = build_worker(config, log_path)
        self._uses_worker = False

    def build(self, job: TrainJob) -> tuple[Engine, Trainer]:
        """Engine and trainer of a resolved job, not yet started."""
        self._uses_worker = job.engine == "local"
        if self._uses_worker:
            return build_local(job, self._config, self._worker)
        engine = FakeEngine(context_length=job.max_model_len or FAKE_CONTEXT_LENGTH)
        return engine, FakeTrainer(engine)

    async def died(self) -> str:
        """Returns the reason when the process behind the built backend has ended; a fake one never does."""
        if not self._uses_worker:
            await asyncio.Event().wait()
        await self._worker.exited.wait()
        return self._worker.exit_reason or "the worker process ended"

    async def close(self) -> None:
        await self._worker.stop()
