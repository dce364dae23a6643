"""What all replicas of one job have in common.

Place in the flow: made by the engine, read by the pool and by every replica. Plain data.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from swarm.backends.vllm.layout import SamplerSettings


@dataclass(frozen=True, slots=True)
class SamplerLimits:
    """What the server grants the replicas, in seconds but for `threads`, which are those of each replica on a CPU.

    A replica that takes longer than `hang_s` to say how it fares hangs. `healthy_s` after its start, or after new
    weights, its earlier deaths are forgotten.
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
    """`python` has vLLM. Each replica writes a log of its own to `log_directory`. With a `ray_address` they run where
    that cluster has room for them, else beside the server."""

    python: Path
    settings: SamplerSettings
    limits: SamplerLimits
    log_directory: Path
    ray_address: str | None = None
