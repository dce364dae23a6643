"""The data that a job's trainer and its replicas exchange."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Device = Literal["cpu", "cuda"]
WeightTransport = Literal["shm_file", "nccl"]


@dataclass(frozen=True, slots=True)
class SamplerLayout:
    """Number of replicas, and number of devices of each.

    They are spread evenly over `nodes` hosts. A `colocated` sampler shares the trainer's devices and sleeps while the
    trainer uses them. `first_device` is the number of the sampler's first GPU among those that the server sees.
    """

    replicas: int = 1
    nodes: int = 1
    tensor_parallel: int = 1
    data_parallel: int = 1
    colocated: bool = False
    device: Device = "cpu"
    first_device: int = 0


@dataclass(frozen=True, slots=True)
class SamplerSettings:
    """Settings of one job's sampler.

    `sampler` is its name in swarm/external_samplers.py. `max_model_len` counts prompt plus completion, in tokens; None
    is the model's own limit. `transport` names the way of new weights. `flags` are further options of the server by its
    own names, which override ours; `flags_setting` names their setting in the job.
    """

    model_directory: Path
    layout: SamplerLayout
    dtype: str
    max_num_seqs: int
    sampler: str
    max_model_len: int | None = None
    seed: int = 0
    transport: WeightTransport = "shm_file"
    flags: Mapping[str, Any] = field(default_factory=dict[str, Any])
    flags_setting: str = "sampler_options"


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
class ReplicaOrder:
    """Order for one start of a replica, which draws from `seed`. Callers of the replica must send `key`.

    `python` has the sampler. With a `ray_address` the replica runs on that cluster, otherwise beside the server.
    """

    ray_address: str | None
    python: Path
    settings: SamplerSettings
    index: int
    seed: int
    threads: int
    key: str


@dataclass(frozen=True, slots=True)
class WeightFile:
    """One set of weights as a safetensors file in shared memory.

    The file is complete: tied output heads have their own entry.
    """

    path: Path
    version: int


@dataclass(frozen=True, slots=True)
class WeightBroadcast:
    """One set of weights that rank 0 of the trainer sends over NCCL to all ranks that join.

    Ranks from 1 on are samplers. The tensors come one by one, in this order, with these dtypes (torch's names) and
    shapes.
    """

    version: int
    master_address: str
    master_port: int
    world_size: int
    names: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()


WeightSource = WeightFile | WeightBroadcast
