"""The verl engine as the server sees it: sampler and trainer of one job, and the way of new weights between them."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from omegaconf import OmegaConf

from swarm.backends.pairing import PUBLISH_TIMEOUT_S, Pair, PairedTrainer, shared_memory_of
from swarm.backends.process.worker_process import WorkerProcess
from swarm.backends.replicas.adapter import SamplerLimits, SamplerSettings, WeightBroadcast, WeightFile
from swarm.backends.replicas.sampler import ReplicaSampler
from swarm.backends.verl.configuration import VerlSettings, merge_settings, sampler_settings
from swarm.backends.waits import together
from swarm.config import ServerConfig
from swarm.errors import EngineFailure, JobInvalid
from swarm.job import TrainJob
from swarm.processes.child import python_module

CHECKPOINT_TIMEOUT_S: Final = 3600.0
"""Time to write or read the shards of a large model and its optimizer, on shared storage."""
STOP_TIMEOUT_S: Final = 15.0
"""Time for the driver to end Ray with all its daemons, and to remove its files in shared memory."""


class VerlTrainer(PairedTrainer):
    """The trainer of a driver process."""

    def __init__(
        self,
        driver: WorkerProcess,
        job: TrainJob,
        model_directory: Path,
        config: ServerConfig,
        *,
        sampler: ReplicaSampler,
        publish_timeout_s: float = PUBLISH_TIMEOUT_S,
    ) -> None:
        super().__init__(
            driver,
            sampler,
            train_timeout_s=config.train_timeout_s,
            checkpoint_timeout_s=CHECKPOINT_TIMEOUT_S,
            publish_timeout_s=publish_timeout_s,
        )
        self._job = job
        self._model_directory = model_directory
        self._config = config
        self._is_open = False

    async def start(self) -> None:
        """Build the trainer, or bring a built one back to the base model."""
        await self.process.start()
        args = {
            "job": self._job.model_dump_json(),
            "model": str(self._model_directory),
            "home": str(self._config.home.resolve()),
            "shm": str(shared_memory_of(self._config.home)),
            "ray_address": self._config.ray_address,
        }
        self._is_open = False
        await self.process.call("open", args, timeout_s=self._config.boot_limit_s("verl"))
        self._published = None
        self._is_open = True

    async def _call(self, op: str, args: Any, timeout_s: float) -> Any:
        if not self._is_open:
            raise EngineFailure("the verl trainer is not started")
        return await super()._call(op, args, timeout_s)

    async def _publish(self, answer: Any) -> None:
        version = answer["version"]
        if "broadcast" in answer:
            await self._broadcast(version, answer["broadcast"])
            return
        path = Path(answer["weights"])
        if not path.exists():
            raise EngineFailure(
                "rank 0 of the trainer wrote it on another host: set"
                " actor_rollout_ref.rollout.checkpoint_engine.backend to nccl"
            )
        await self._hand_over(WeightFile(path, version))

    async def _broadcast(self, version: int, meeting: Mapping[str, Any]) -> None:
        """Call trainer and sampler at once, because the samplers wait for rank 0. If one fails, cancel the other."""
        names, dtypes, shapes = zip(*meeting["tensors"], strict=True)
        source = WeightBroadcast(
            version=version,
            master_address=meeting["master_address"],
            master_port=meeting["master_port"],
            world_size=meeting["world_size"],
            names=names,
            dtypes=dtypes,
            shapes=tuple(tuple(shape) for shape in shapes),
        )
        sending = self.process.call("send", version, timeout_s=self._publish_timeout_s)
        await together([sending, self._sampler.publish(source)])


def build_driver(job: TrainJob, config: ServerConfig, log_path: Path) -> WorkerProcess:
    """Return the driver process of one job, not yet started. An early start hides the import of its libraries."""
    environment = {
        "OMP_NUM_THREADS": str(config.torch_threads or 1),
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }
    if config.ray_address is None:
        # Some of Ray's servers listen on every interface, so a private cluster accepts only its own processes.
        environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    if job.n_gpu == 0:
        environment |= {"VERL_PLATFORM": "cpu", "VERL_USE_EXTERNAL_MODULES": "swarm.backends.verl.ranks.platform"}
    command = python_module("swarm.backends.verl.driver.main")
    return WorkerProcess(command, log_path, environment, stop_timeout_s=STOP_TIMEOUT_S)


def build_verl(
    job: TrainJob,
    model_directory: Path,
    config: ServerConfig,
    log_directory: Path,
    sampling_seed: Callable[[], Sequence[int]] | None = None,
) -> Pair[VerlTrainer]:
    """Return the pair of a resolved job, not yet started.

    Raise JobInvalid for settings that verl or the service refuses.
    """
    merged = merge_settings(job, model_directory)
    check_cluster(merged, config)
    settings = _placed(sampler_settings(merged), merged, has_own_cluster=config.ray_address is None)
    sampler = ReplicaSampler(
        settings,
        python=config.python_of(settings.sampler),
        log_directory=log_directory,
        limits=SamplerLimits(boot_timeout_s=config.boot_limit_s("verl"), threads=config.torch_threads or 1),
        sampling_seed=sampling_seed,
        ray_address=config.ray_address,
    )
    driver = build_driver(job, config, log_directory / "driver.log")
    trainer = VerlTrainer(driver, job, model_directory, config, sampler=sampler)
    # The trainer takes whole nodes of a cluster, so it must find them before the replicas fill the rest.
    return Pair(sampler, trainer, trainer_first=config.ray_address is not None)


def check_cluster(merged: VerlSettings, config: ServerConfig) -> None:
    """Raise JobInvalid for a job of several hosts on a server without a cluster address."""
    for key in ("trainer.nnodes", "actor_rollout_ref.rollout.nnodes"):
        nodes: int = OmegaConf.select(merged.config, key)
        if nodes > 1 and config.ray_address is None:
            raise JobInvalid(
                f"verl.{key}: {nodes} hosts are a Ray cluster: start the server with SWARM_RAY_ADDRESS",
                param=f"verl.{key}",
            )


def _placed(settings: SamplerSettings, merged: VerlSettings, *, has_own_cluster: bool) -> SamplerSettings:
    """Return the settings with the sampler's GPUs.

    In a private cluster the trainer takes the first GPUs of this host, and the sampler those after them.
    """
    if settings.layout.colocated or not has_own_cluster:
        return settings
    return replace(settings, layout=replace(settings.layout, first_device=merged.ranks))
