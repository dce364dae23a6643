"""The common start and the common end of a sampler and a trainer in two processes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Protocol

from swarm.sampler import SamplerInfo


class SleepingSampler(Protocol):
    """Sampler that can give its devices to the trainer for a while."""

    async def start(self) -> SamplerInfo: ...

    async def suspend(self) -> None: ...

    async def resume(self) -> None: ...


async def start_in_turns(sampler: SleepingSampler, start_trainer: Callable[[], Awaitable[object]]) -> SamplerInfo:
    """Start both on the same devices, so that only one of them uses the devices at a time.

    Raise the error of the start that fails.
    """
    info = await sampler.start()
    await sampler.suspend()
    await start_trainer()
    await sampler.resume()
    return info


async def start_together(
    sampler: Coroutine[Any, Any, SamplerInfo], trainer: Coroutine[Any, Any, object]
) -> SamplerInfo:
    """Start both at once, and raise the error of the start that fails.

    If one start fails, the other is cancelled and awaited.
    """
    starting_sampler = asyncio.ensure_future(sampler)
    starting: list[asyncio.Future[Any]] = [starting_sampler, asyncio.ensure_future(trainer)]
    try:
        await asyncio.gather(*starting)
        return starting_sampler.result()
    finally:
        await _cancel(starting)


async def first_death(*deaths: Coroutine[Any, Any, str]) -> str:
    """Wait until one of them dies, and return its reason."""
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
