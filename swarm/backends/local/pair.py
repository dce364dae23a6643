"""The local trainer with an external sampler: for a real model on one machine, without Ray."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from swarm.backends.local.engine import LocalSampler, LocalTrainer, build_local
from swarm.backends.pairing import first_death, start_in_turns, start_together
from swarm.backends.process.worker_process import WorkerProcess
from swarm.backends.replicas.adapter import load_adapter
from swarm.backends.replicas.handover import PUBLISH_TIMEOUT_S, Handover, shared_memory_of
from swarm.backends.replicas.layout import SamplerLayout, SamplerLimits, SamplerSettings, WeightFile
from swarm.backends.replicas.sampler import ReplicaSampler
from swarm.backends.threads import choose_threads
from swarm.config import ServerConfig
from swarm.job import TrainJob
from swarm.model_path import stored_dtype, stored_parameters
from swarm.sampler import SamplerInfo
from swarm.types import SamplingParams, StepReport, TokenDelta, TrainBatch, WeightVersion

BOOT_LIMIT_OF: Final = "verl"
"""Engine whose default limit of a start applies: the sampler takes the same time in both."""


class PublishingTrainer:
    """Implementation of `swarm.trainer.base.Trainer` by the local trainer.

    Every version also reaches the sampler as a file.
    """

    def __init__(self, local: LocalTrainer, worker: WorkerProcess, handover: Handover, directory: Path) -> None:
        """Wrap the local trainer. Weights are written below `directory`, which is in shared memory."""
        self._local = local
        self._worker = worker
        self._handover = handover
        self.directory = directory

    def discard_versions(self) -> None:
        """Remove earlier versions from shared memory, at a start from the base model and at the end."""
        self._handover.forget()
        shutil.rmtree(self.directory, ignore_errors=True)

    async def train(self, batch: TrainBatch) -> StepReport:
        async with self._handover.sampler_asleep():
            report = await self._local.train(batch)
        began = time.perf_counter()
        await self._let_out(report.weight_version)
        published = {"timing_s/publish_weights": time.perf_counter() - began}
        return replace(report, metrics={**report.metrics, **published})

    async def save(self, directory: Path) -> None:
        async with self._handover.sampler_asleep():
            await self._local.save(directory)

    async def load(self, directory: Path) -> WeightVersion:
        async with self._handover.sampler_asleep():
            loaded = await self._local.load(directory)
        await self._let_out(loaded)
        return loaded

    async def _let_out(self, loaded: WeightVersion) -> None:
        path = await self._worker.call("write_weights", str(self.directory.resolve()), timeout_s=PUBLISH_TIMEOUT_S)
        await self._handover.hand_over(WeightFile(Path(path), loaded.version))


@dataclass(frozen=True, slots=True)
class LocalPair:
    """Implementation of `swarm.sampler.Sampler` by the sampler, which also starts and stops the worker."""

    sampler: ReplicaSampler
    trainer: PublishingTrainer
    worker: WorkerProcess
    loaded: LocalSampler
    colocated: bool

    async def start(self) -> SamplerInfo:
        """Start both at the base model, version 0. Raise JobInvalid, EngineFailure, EngineLost."""
        self.trainer.discard_versions()
        if self.colocated:
            return await start_in_turns(self.sampler, self.loaded.start)
        return await start_together(self.sampler.start(), self.loaded.start())

    async def stop(self) -> None:
        await asyncio.gather(self.sampler.stop(), self.loaded.stop())
        self.trainer.discard_versions()

    async def end(self) -> None:
        """End both processes, even if they hang."""
        await asyncio.gather(self.sampler.stop(), self.worker.stop())
        self.trainer.discard_versions()

    def generate(
        self, request_id: str, prompt_ids: Sequence[int], params: SamplingParams
    ) -> AsyncGenerator[TokenDelta, None]:
        return self.sampler.generate(request_id, prompt_ids, params)

    async def died(self) -> str:
        """Wait until a new start is needed, and return the reason.

        Either the worker has ended, or no replica can be kept alive.
        """
        return await first_death(self.sampler.died(), self.worker.died())


def build_pair(
    job: TrainJob,
    sampler: str,
    model_directory: Path,
    config: ServerConfig,
    worker: WorkerProcess,
    log_directory: Path,
    sampling_seed: Callable[[], Sequence[int]],
) -> LocalPair:
    """Return the pair of a resolved job and the sampler of this name, not yet started.

    Raise CheckpointError for damaged weight files.
    """
    exact = job.model_copy(update={"dtype": _dtype(job, model_directory)})
    settings = sampler_settings(exact, sampler, model_directory, max_running=config.max_running_requests)
    threads = config.torch_threads or choose_threads(stored_parameters(model_directory), config.max_torch_threads)
    replicas = ReplicaSampler(
        settings,
        python=config.python_of(sampler),
        log_directory=log_directory,
        limits=SamplerLimits(boot_timeout_s=config.boot_limit_s(BOOT_LIMIT_OF), threads=threads),
        sampling_seed=sampling_seed,
    )
    loaded, local = build_local(exact, config, worker, sampling_seed=lambda: [job.seed])
    shares: dict[str, Any] = {"suspend": replicas.suspend, "resume": replicas.resume}
    handover = Handover(replicas.publish, **(shares if settings.layout.colocated else {}))
    trainer = PublishingTrainer(local, worker, handover, shared_memory_of(config.home))
    return LocalPair(replicas, trainer, worker, loaded, settings.layout.colocated)


def sampler_settings(job: TrainJob, sampler: str, model_directory: Path, *, max_running: int) -> SamplerSettings:
    """Return the settings of one replica on the trainer's own device, for a job whose `dtype` is settled."""
    device = "cuda" if job.n_gpu else "cpu"
    return SamplerSettings(
        model_directory=model_directory,
        layout=SamplerLayout(colocated=device == "cuda", device=device),
        dtype=job.dtype,
        max_num_seqs=max_running,
        sampler=sampler,
        max_model_len=job.max_model_len,
        seed=job.seed,
        flags={**load_adapter(sampler).flags_beside_trainer(device), **job.sampler_options},
    )


def _dtype(job: TrainJob, model_directory: Path) -> str:
    """Return one format for both: `auto` is bfloat16 on a GPU or for a bfloat16 checkpoint, else float32."""
    if job.dtype != "auto":
        return job.dtype
    if job.n_gpu:
        return "bfloat16"
    return "bfloat16" if stored_dtype(model_directory) == "bfloat16" else "float32"
