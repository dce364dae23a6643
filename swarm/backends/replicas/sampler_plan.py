"""The settings that all replicas of one job have in common.

Place in the flow: made by the sampler, read by the pool and by every replica. Plain data.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from swarm.backends.replicas.layout import SamplerSettings


@dataclass(frozen=True, slots=True)
class SamplerLimits:
    """Limits that the server sets for the replicas, in seconds. `threads` is the number of threads of each on a CPU.

    A replica hangs if a health check takes longer than `hang_s`. Its earlier deaths are forgotten `healthy_s` after its
    start or after new weights.
    """

    boot_timeout_s: float = 600.0
    call_timeout_s: float = 60.0
    transfer_timeout_s: float = 300.0
    hang_s: float = 60.0
    watch_interval_s: float = 1.0
    healthy_s: float = 60.0
    threads: int = 1


@dataclass(frozen=True, slots=True)
class ReplicaPlan:
    """Plan for the replicas of one job.

    `python` has vLLM. Each replica writes its own log to `log_directory`. With a `ray_address` the replicas run on that
    cluster, wherever devices are free, otherwise beside the server.
    """

    python: Path
    settings: SamplerSettings
    limits: SamplerLimits
    log_directory: Path
    ray_address: str | None = None
