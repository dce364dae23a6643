"""The sampler and trainer of one verl job, built together and started together.

Place in the flow: made by backends/base.py. The trainer's driver publishes to the sampler. Neither is useful without
the other, so the server sees one engine. This module knows nothing of HTTP, Ray or tensors.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from swarm.backends.pairing import first_death, start_in_turns, start_together
from swarm.backends.process.worker_process import WorkerProcess
from swarm.backends.replicas.layout import SamplerLimits, SamplerSettings
from swarm.backends.replicas.sampler import ReplicaSampler
from swarm.backends.verl.settings.configuration import VerlSettings, merge_settings
from swarm.backends.verl.settings.sampler_settings import sampler_settings
from swarm.backends.verl.trainer import VerlLimits, VerlTrainer, build_driver
from swarm.config import ServerConfig
from swarm.errors import JobInvalid
from swarm.job import TrainJob
from swarm.sampler import SamplerInfo
from swarm.types import SamplingParams, TokenDelta


@dataclass(frozen=True, slots=True)
class VerlPair:
    """Implementation of `swarm.sampler.Sampler` by the sampler, which also starts and stops the trainer."""

    sampler: ReplicaSampler
    trainer: VerlTrainer
    driver: WorkerProcess
    colocated: bool
    one_after_the_other: bool = False

    async def start(self) -> SamplerInfo:
        """Start both at the base model, and keep living processes. Raise JobInvalid, EngineFailure, EngineLost."""
        if self.colocated:
            return await start_in_turns(self.sampler, self.trainer.start)
        if self.one_after_the_other:
            # The trainer takes whole nodes of the cluster, so it must find them before the replicas fill the rest.
            await self.trainer.start()
            return await self.sampler.start()
        return await start_together(self.sampler.start(), self.trainer.start())

    async def stop(self) -> None:
        await asyncio.gather(self.sampler.stop(), self.driver.stop())

    def generate(
        self, request_id: str, prompt_ids: Sequence[int], params: SamplingParams
    ) -> AsyncGenerator[TokenDelta, None]:
        return self.sampler.generate(request_id, prompt_ids, params)

    async def died(self) -> str:
        """Wait until a new start is needed, and return the reason.

        Either the trainer has ended, or no replica can be kept alive.
        """
        return await first_death(self.sampler.died(), self.driver.died())


def build_verl(
    job: TrainJob,
    model_directory: Path,
    config: ServerConfig,
    log_directory: Path,
    sampling_seed: Callable[[], Sequence[int]] | None = None,
) -> VerlPair:
    """Return the pair of a resolved job, not yet started.

    Raise JobInvalid for settings that verl or the service refuses.
    """
    merged = merge_settings(job, model_directory)
    check_cluster(merged, config)
    settings = _placed(sampler_settings(merged), merged, has_own_cluster=config.ray_address is None)
    boot_timeout_s = config.boot_limit_s("verl")
    sampler = ReplicaSampler(
        settings,
        python=config.python_of(settings.sampler),
        log_directory=log_directory,
        limits=SamplerLimits(boot_timeout_s=boot_timeout_s, threads=config.torch_threads or 1),
        sampling_seed=sampling_seed,
        ray_address=config.ray_address,
    )
    driver = build_driver(job, config, log_directory / "driver.log")
    shares: dict[str, Any] = {"suspend": sampler.suspend, "resume": sampler.resume}
    trainer = VerlTrainer(
        driver,
        job,
        model_directory,
        config,
        publish=sampler.publish,
        limits=VerlLimits(boot_timeout_s=boot_timeout_s, train_timeout_s=config.train_timeout_s),
        **(shares if settings.layout.colocated else {}),
    )
    return VerlPair(
        sampler, trainer, driver, settings.layout.colocated, one_after_the_other=config.ray_address is not None
    )


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
