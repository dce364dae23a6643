"""How a sampler and a trainer that are two processes start together and die together.

Place in the flow: used by the pairs of backends/vllm and backends/verl. It knows nothing of models, devices or weights.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Protocol

from swarm.sampler import EngineInfo


class SleepingSampler(Protocol):
    """A sampler that can leave its devices to the trainer for a while."""

    async def start(self) -> EngineInfo: ...

    async def suspend(self) -> None: ...

    async def resume(self) -> None: ...


async def start_in_turns(sampler: SleepingSampler, start_trainer: Callable[[], Awaitable[object]]) -> EngineInfo:
    """Start both on the same devices: each takes them while the other does not hold them. Raises what a start
    raises."""
    info = await sampler.start()
    await sampler.suspend()
    await start_trainer()
    await sampler.resume()
    return info


async def start_together(sampler: Coroutine[Any, Any, EngineInfo], trainer: Coroutine[Any, Any, object]) -> EngineInfo:
    """Start both at once; if one fails, the other's start is cancelled and awaited. Raises what a start raises."""
    starting_sampler = asyncio.ensure_future(sampler)
    starting: list[asyncio.Future[Any]] = [starting_sampler, asyncio.ensure_future(trainer)]
    try:
        await asyncio.gather(*starting)
        return starting_sampler.result()
    finally:
        await _cancel(starting)


async def first_death(*deaths: Coroutine[Any, Any, str]) -> str:
    """The reason of whichever dies first."""
    waits = [asyncio.ensure_future(death) for death in deaths]
    try:
        done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        return next(iter(done)).result()
    finally:
        await _cancel(waits)


async def _cancel(futures: Sequence[asyncio.Future[Any]]) -> None:
    for each in futures:
        each.cancel()
    await asyncio.gather(*futures, return_exceptions=True)
