"""The sampler and trainer that a job names, and the one worker process that outlives jobs."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swarm.backends.fake import FakeSampler, FakeTrainer
from swarm.backends.local.engine import build_local, build_worker
from swarm.backends.process.worker_process import WorkerProcess
from swarm.config import ServerConfig
from swarm.errors import EngineFailure, JobInvalid
from swarm.external_samplers import EXTERNAL_SAMPLERS
from swarm.job import TrainJob
from swarm.model_path import BUNDLED_DIRECTORIES, BUNDLED_DIRECTORY, resolve_model
from swarm.sampler import Sampler, SamplerInfo
from swarm.trainer.base import Trainer

logger = logging.getLogger(__name__)

FAKE_CONTEXT_LENGTH = 4096
END_TIMEOUT_S = 20.0
"""The time that a sampler has to stop before its process is ended."""
GPU_DRIVERS = (Path("/dev/nvidiactl"), Path("/dev/kfd"), Path("/dev/dxg"))
"""Device files of NVIDIA, AMD, and Windows below WSL. A machine with none of them has no GPU. The backends count the
GPUs themselves."""


@dataclass(frozen=True, slots=True)
class Backend:
    """Sampler and trainer of one job; `tokenizer_path` is known before the sampler has started.

    `warm_up` begins slow preparations and returns at once. `died` returns the reason once the process of a started
    sampler has ended, wanted or not. `end` ends that process, even if it hangs.
    """

    sampler: Sampler
    trainer: Trainer
    tokenizer_path: Path
    warm_up: Callable[[], Awaitable[None]]
    died: Callable[[], Coroutine[Any, Any, str]]
    end: Callable[[], Awaitable[None]]

    async def start(self, limit_s: float) -> SamplerInfo:
        """Start the sampler. Raise its errors, and EngineFailure if it takes longer than `limit_s` seconds."""
        try:
            async with asyncio.timeout(limit_s):
                return await self.sampler.start()
        except TimeoutError:
            await self.end()
            raise EngineFailure(f"the engine did not start within {limit_s:.0f} s") from None

    async def stop(self) -> None:
        """Free the engine, and end its process if it does not answer."""
        try:
            async with asyncio.timeout(END_TIMEOUT_S):
                await self.sampler.stop()
        except (TimeoutError, EngineFailure) as error:
            logger.warning("the engine does not stop, its process is ended: %s", error)
            await self.end()


class Backends:
    """Builder of backends for one job after another.

    The first job that needs the local worker starts it, and the worker is kept. The next job then skips the import of
    its libraries, which takes seconds.
    """

    def __init__(self, config: ServerConfig, log_path: Path, *, gpu_drivers: Collection[Path] = GPU_DRIVERS) -> None:
        self._config = config
        self._gpu_drivers = gpu_drivers
        self._log_path = log_path
        self._worker: WorkerProcess = build_worker(config, log_path)

    def build(self, job: TrainJob, *, is_fresh: bool) -> Backend:
        """Return the backend of a resolved job, not yet started.

        The sampler of a fresh run draws from the job's seed. A continued run must not use this seed again: it would
        give the second half of a group the same completions as the first. Raise EngineFailure for a missing model, and
        JobInvalid for settings that the engine refuses.
        """
        if job.engine == "fake":
            return self._build_fake(job)
        self._check_gpus(job)
        tokenizer_path = resolve_model(job.model)
        if job.engine == "verl":
            # Imported late: the libraries take a third of a server's start, and few servers need them.
            from swarm.backends.verl.engine import build_verl

            pair = build_verl(
                job, tokenizer_path, self._config, self._log_path.parent, _sampling_seeds(job.seed, is_fresh)
            )
            return Backend(pair, pair.trainer, tokenizer_path, pair.trainer.process.start, pair.died, pair.end)
        sampler = self._external_sampler(job)
        if sampler is not None:
            from swarm.backends.local.pair import build_pair

            both = build_pair(
                job,
                sampler,
                tokenizer_path,
                self._config,
                self._worker,
                self._log_path.parent,
                _sampling_seeds(job.seed, is_fresh),
            )
            return Backend(both, both.trainer, tokenizer_path, self._worker.start, both.died, both.end)
        sampler, trainer = build_local(job, self._config, self._worker, _sampling_seeds(job.seed, is_fresh))
        return Backend(sampler, trainer, tokenizer_path, self._worker.start, self._worker.died, self._worker.stop)

    def check(self, job: TrainJob) -> None:
        """Raise JobInvalid for settings that the job's engine is known to refuse, before it is started."""
        self._check_gpus(job)
        if job.chosen_engine == "verl":
            from swarm.backends.verl.configuration import merge_settings
            from swarm.backends.verl.engine import check_cluster

            check_cluster(merge_settings(job, Path(job.model)), self._config)

    def _external_sampler(self, job: TrainJob) -> str | None:
        """Return the sampler beside the worker, or None if the worker samples. This is how `sampler: auto` is resolved.

        On a CPU the worker samples as fast as vLLM or faster (bench real_size).
        """
        if job.sampler != "auto":
            return job.sampler if job.sampler in EXTERNAL_SAMPLERS else None
        is_own_model = job.model not in BUNDLED_DIRECTORIES
        has_vllm = "vllm" in self._config.sampler_pythons
        return "vllm" if job.n_gpu and has_vllm and is_own_model and not job.lora_rank else None

    def _check_gpus(self, job: TrainJob) -> None:
        """Raise JobInvalid for missing GPUs at once.

        Otherwise the error would come after minutes of imports, or be hidden behind another one.
        """
        if not job.n_gpu or job.chosen_engine == "fake" or any(driver.exists() for driver in self._gpu_drivers):
            return
        places = "start the server on a machine with GPUs"
        if job.chosen_engine == "verl":
            if self._config.ray_address is not None:
                return
            places += ", or with SWARM_RAY_ADDRESS for those of a Ray cluster"
        asked = "a GPU" if job.n_gpu == 1 else f"{job.n_gpu} GPUs"
        raise JobInvalid(
            f"n_gpu: {job.n_gpu} asks for {asked} and this machine has none: set n_gpu: 0 to train on the CPU, or "
            f"{places}",
            param="n_gpu",
        )

    async def warm_up(self) -> None:
        """Start the local worker before a job needs it, and return at once."""
        await self._worker.start()

    async def close(self) -> None:
        await self._worker.stop()

    def _build_fake(self, job: TrainJob) -> Backend:
        sampler = FakeSampler(context_length=job.max_model_len or FAKE_CONTEXT_LENGTH)

        async def nothing() -> None:
            return None

        async def died() -> str:
            await sampler.died.wait()
            return sampler.death or "the fake engine died"

        return Backend(sampler, FakeTrainer(sampler, job), BUNDLED_DIRECTORY, nothing, died, nothing)


def _sampling_seeds(seed: int, is_fresh: bool) -> Callable[[], Sequence[int]]:
    pending = [[seed]] if is_fresh else []
    return lambda: pending.pop() if pending else [seed, secrets.randbits(32)]
