"""The settings that all replicas of one job have in common.

Place in the flow: made by the sampler, read by the pool and by every replica. Plain data.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from swarm.backends.replicas.adapter import SamplerAdapter
from swarm.backends.replicas.layout import SamplerLimits, SamplerSettings


@dataclass(frozen=True, slots=True)
class ReplicaPlan:
    """Plan for the replicas of one job, which are servers of the adapter's kind.

    `python` has the sampler. Each replica writes its own log to `log_directory`. With a `ray_address` the replicas run
    on that cluster, wherever devices are free, otherwise beside the server.
    """

    adapter: SamplerAdapter
    python: Path
    settings: SamplerSettings
    limits: SamplerLimits
    log_directory: Path
    ray_address: str | None = None
