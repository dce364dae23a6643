"""The local trainer with an external sampler: for a real model on one machine, without Ray."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from swarm.backends.local.engine import CHECKPOINT_TIMEOUT_S, LocalSampler, build_local
from swarm.backends.pairing import PUBLISH_TIMEOUT_S, Pair, PairedTrainer, shared_memory_of
from swarm.backends.process.worker_process import WorkerProcess
from swarm.backends.replicas.adapter import SamplerLayout, SamplerLimits, SamplerSettings, WeightFile, load_adapter
from swarm.backends.replicas.sampler import ReplicaSampler
from swarm.backends.threads import choose_threads
from swarm.config import ServerConfig
from swarm.job import TrainJob
from swarm.model_path import stored_dtype, stored_parameters

BOOT_LIMIT_OF: Final = "verl"
"""Engine whose default limit of a start applies: the sampler takes the same time in both."""


class PublishingTrainer(PairedTrainer):
    """The local trainer, every version of which also reaches the sampler as a file."""

    def __init__(
        self, loaded: LocalSampler, sampler: ReplicaSampler, directory: Path, *, train_timeout_s: float
    ) -> None:
        """Train the model that `loaded` loads. Weights are written below `directory`, which is in shared memory."""
        super().__init__(
            loaded.worker,
            sampler,
            train_timeout_s=train_timeout_s,
            checkpoint_timeout_s=CHECKPOINT_TIMEOUT_S,
        )
        self._loaded = loaded
        self.directory = directory

    async def start(self) -> None:
        self._discard_versions()
        await self._loaded.start()

    async def stop(self) -> None:
        await self._loaded.stop()
        self._discard_versions()

    async def end(self) -> None:
        await super().end()
        self._discard_versions()

    async def _publish(self, answer: Any) -> None:
        path = await self.process.call("write_weights", str(self.directory.resolve()), timeout_s=PUBLISH_TIMEOUT_S)
        await self._hand_over(WeightFile(Path(path), answer["version"]))

    def _discard_versions(self) -> None:
        """Remove earlier versions from shared memory, at a start from the base model and at the end."""
        self._published = None
        shutil.rmtree(self.directory, ignore_errors=True)


def build_pair(
    job: TrainJob,
    sampler: str,
    model_directory: Path,
    config: ServerConfig,
    worker: WorkerProcess,
    log_directory: Path,
    sampling_seed: Callable[[], Sequence[int]],
) -> Pair[PublishingTrainer]:
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
    loaded, _ = build_local(exact, config, worker, sampling_seed=lambda: [job.seed])
    trainer = PublishingTrainer(loaded, replicas, shared_memory_of(config.home), train_timeout_s=config.train_timeout_s)
    return Pair(replicas, trainer)


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
