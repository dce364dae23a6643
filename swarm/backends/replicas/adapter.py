"""The data that a job's trainer and its replicas exchange, and the part that depends on the kind of sampler server."""

from __future__ import annotations

import importlib
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from swarm.external_samplers import EXTERNAL_SAMPLERS
from swarm.types import SamplingParams, TokenLogprobs

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


@dataclass(frozen=True, slots=True)
class SamplerRequest:
    """Request for the rest of one completion, after the tokens in `prompt_ids`.

    `params` belong to the whole completion. The rest has at least `min_tokens` and at most `max_tokens` tokens, ends
    after any of `end_ids`, and draws from `seed`. `eos_id` is the tokenizer's own end token.
    """

    request_id: str
    prompt_ids: list[int]
    params: SamplingParams
    max_tokens: int
    min_tokens: int
    end_ids: frozenset[int]
    eos_id: int | None
    seed: int | None


@dataclass(frozen=True, slots=True)
class StreamPiece:
    """Content of one event of a stream. `ended` tells that the server will send no more tokens."""

    token_ids_T: tuple[int, ...]
    logprobs_T: tuple[float, ...]
    likeliest_T: tuple[TokenLogprobs, ...]
    ended: str | None


class SamplerServer(Protocol):
    """One running server. Used from one asyncio event loop.

    Every call but `until_ready`, `check` and `complete` has a deadline. A call raises EngineLost if the server breaks
    off or exceeds the deadline, and otherwise the SwarmError of its answer.
    """

    @property
    def base_url(self) -> str: ...

    async def close(self) -> None: ...

    async def until_ready(self) -> None:
        """Wait until the server answers. The caller limits the wait and watches the process."""
        ...

    async def inspect(self) -> int:
        """Return the maximum of prompt plus completion, in tokens. Raise EngineFailure if the server is unsuitable."""
        ...

    def complete(self, request: SamplerRequest) -> AsyncGenerator[StreamPiece]:
        """Yield a completion piece by piece. An early close aborts it.

        Raise BadRequest if the request is refused, and EngineLost if the server breaks off.
        """
        ...

    async def check(self) -> None:
        """Raise SwarmError with the reason if the server is dead or paused. The caller limits the wait."""
        ...

    async def pause(self) -> None:
        """Sample no more tokens until `resume`. Running requests stay."""
        ...

    async def resume(self) -> None: ...

    async def load(self, source: WeightSource) -> None:
        """Take new weights while paused, and compute running requests anew with them where that is possible."""
        ...

    async def forget_cache(self) -> None:
        """Drop everything that was computed from prompts so far."""
        ...

    async def sleep(self) -> None:
        """Pause, and give the devices back. Raise EngineFailure if this server cannot."""
        ...

    async def wake(self) -> None:
        """Take the devices again, and resume."""
        ...


class SamplerAdapter(Protocol):
    """One kind of server. It has no state."""

    @property
    def name(self) -> str:
        """Name in messages."""
        ...

    def flags_beside_trainer(self, device: Device) -> Mapping[str, Any]:
        """Return the options of a server that shares a device with the trainer, for a job that names none."""
        ...

    def command(self, order: ReplicaOrder, *, host: str, port: int) -> list[str]:
        """Return the command line of a server. Raise JobInvalid for a flag that a job must not set."""
        ...

    def environment(self, order: ReplicaOrder, shared: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of a server. `shared` is that of every kind of server, and has the user's own."""
        ...

    def connect(self, base_url: str, order: ReplicaOrder, limits: SamplerLimits) -> SamplerServer:
        """Return the server that was started at this address."""
        ...


def load_adapter(sampler: str) -> SamplerAdapter:
    """Return the adapter of the sampler with this name in a job."""
    module, _, name = EXTERNAL_SAMPLERS[sampler].partition(":")
    return getattr(importlib.import_module(module), name)()


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
