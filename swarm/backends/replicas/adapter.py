"""The part of replicas that depends on the kind of sampler server: command, routes, form of a completion."""

from __future__ import annotations

import importlib
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from swarm.backends.replicas.layout import Device, ReplicaOrder, SamplerLimits, SamplerSettings, WeightSource
from swarm.external_samplers import EXTERNAL_SAMPLERS
from swarm.types import SamplingParams, TokenLogprobs


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

    def check_params(self, params: SamplingParams) -> None:
        """Raise BadRequest for a parameter that the server would change silently, or does not support."""
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
