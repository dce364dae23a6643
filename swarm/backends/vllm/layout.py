"""What a job's trainer and its vLLM replicas tell each other.

Place in the flow: settings are made of a job when its backend is built, and read by the replicas; weights travel from
the trainer to the replicas. Plain data: it knows nothing of HTTP, Ray or tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Device = Literal["cpu", "cuda"]
WeightTransport = Literal["shm_file", "nccl"]


@dataclass(frozen=True, slots=True)
class SamplerLayout:
    """How many vLLM replicas run, and on how many devices each.

    They are spread evenly over `nodes` hosts. A `colocated` sampler lives on the trainer's devices and sleeps while
    those train. `first_device` is the number of the first GPU that is the sampler's, among those that the server sees.
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
    """One job's sampler. `max_model_len` counts prompt plus completion, in tokens; None is what the model allows.

    `transport` is how new weights come. `flags` are further options of `vllm serve` by its own names, laid over ours;
    `flags_setting` is where the job has them.
    """

    model_directory: Path
    layout: SamplerLayout
    dtype: str
    max_num_seqs: int
    max_model_len: int | None = None
    seed: int = 0
    transport: WeightTransport = "shm_file"
    flags: Mapping[str, Any] = field(default_factory=dict[str, Any])
    flags_setting: str = "vllm"


@dataclass(frozen=True, slots=True)
class ReplicaOrder:
    """One replica to run on a node of a Ray cluster: on `node_id`, where it was before, if there is still room.

    `python` has vLLM on that node, `key` is what the replica asks of its callers.
    """

    ray_address: str
    python: Path
    settings: SamplerSettings
    index: int
    seed: int
    threads: int
    key: str
    node_id: str | None = None


@dataclass(frozen=True, slots=True)
class WeightFile:
    """One set of weights as a safetensors file in shared memory, whole: tied output heads are in it by name as well."""

    path: Path
    version: int


@dataclass(frozen=True, slots=True)
class WeightBroadcast:
    """One set of weights that rank 0 of the trainer sends over NCCL to all that join. Ranks from 1 on are samplers.

    The tensors come one by one, in this order, of these dtypes (torch's names) and shapes.
    """

    version: int
    master_address: str
    master_port: int
    world_size: int
    names: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()


WeightSource = WeightFile | WeightBroadcast
