"""The local engine as the server sees it: sampler and trainer, handles on one worker process that holds the model."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path

import msgspec

from swarm.backends.pairing import ProcessTrainer
from swarm.backends.process.worker_process import WorkerProcess
from swarm.config import ServerConfig
from swarm.errors import EngineFailure
from swarm.job import TrainJob
from swarm.model_path import resolve_model
from swarm.processes.child import python_module
from swarm.sampler import SamplerInfo
from swarm.types import SamplingParams, TokenDelta

UNLOAD_TIMEOUT_S = 30.0
CHECKPOINT_TIMEOUT_S = 600.0
"""Time to write or read the largest model that fits on one machine, on a slow disk."""


class LocalSampler:
    """Implementation of `swarm.sampler.Sampler` on a worker process shared with the trainer.

    A completion ends with finish reason `length` at max_tokens or at the context limit, whichever comes first. A
    restart loads the model afresh, weight version 0, in the same process if that is still alive. `stop` only frees the
    model, so the next job starts without importing the libraries.
    """

    def __init__(
        self,
        worker: WorkerProcess,
        job: TrainJob,
        config: ServerConfig,
        sampling_seed: Callable[[], Sequence[int]] | None = None,
    ) -> None:
        """Create the sampler of a job.

        At every start, `sampling_seed` is called for the seed of unseeded requests; the default is the job's seed.
        """
        self.worker = worker
        self._job = job
        self._config = config
        self._sampling_seed = sampling_seed or (lambda: [job.seed])
        self._info: SamplerInfo | None = None

    async def start(self) -> SamplerInfo:
        directory = resolve_model(self._job.model)
        await self.worker.start()
        args = {
            "directory": str(directory),
            "job": self._job.model_dump_json(),
            "max_running_requests": self._config.max_running_requests,
            "torch_threads": self._config.torch_threads,
            "max_torch_threads": self._config.max_torch_threads,
            "sampling_seed": list(self._sampling_seed()),
        }
        answer = await self.worker.call("load", args, timeout_s=self._config.boot_limit_s("local"))
        self._info = msgspec.convert(answer, SamplerInfo)
        return self._info

    async def stop(self) -> None:
        self._info = None
        if self.worker.pid is not None:
            await self.worker.call("unload", None, timeout_s=UNLOAD_TIMEOUT_S)

    async def generate(
        self, request_id: str, prompt_ids: Sequence[int], params: SamplingParams
    ) -> AsyncGenerator[TokenDelta]:
        if self._info is None:
            raise EngineFailure("the local engine is not started")
        stream = await self.worker.open_stream("generate", [prompt_ids, params])
        try:
            while True:
                delta = await stream.read()
                yield delta
                if delta.finish_reason is not None:
                    return
        finally:
            stream.close()


def build_worker(config: ServerConfig, log_path: Path) -> WorkerProcess:
    """Return a worker process, not yet started. It outlives jobs; an early start hides the import of its libraries."""
    return WorkerProcess(
        python_module("swarm.backends.local.worker"),
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
) -> tuple[LocalSampler, ProcessTrainer]:
    """Return sampler and trainer of one job on a worker that outlives them. The caller stops the worker."""
    trainer = ProcessTrainer(worker, train_timeout_s=config.train_timeout_s, checkpoint_timeout_s=CHECKPOINT_TIMEOUT_S)
    return LocalSampler(worker, job, config, sampling_seed), trainer
