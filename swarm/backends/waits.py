"""Waits for several things at once, none of which goes on afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import Any


async def together(awaitables: Iterable[Awaitable[Any]]) -> list[Any]:
    """Return all results. If one fails, cancel and await the others, and raise its error."""
    futures = [asyncio.ensure_future(each) for each in awaitables]
    try:
        return await asyncio.gather(*futures)
    finally:
        await cancelled(*futures)


async def first_of(*awaitables: Awaitable[Any]) -> Any:
    """Return the result of the first that is done, or raise its error; cancel and await the others."""
    futures = [asyncio.ensure_future(each) for each in awaitables]
    try:
        done, _ = await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
        return next(iter(done)).result()
    finally:
        await cancelled(*futures)


async def cancelled(*futures: asyncio.Future[Any]) -> None:
    """Cancel what is not done, and wait for the end of all."""
    for each in futures:
        each.cancel()
    await asyncio.gather(*futures, return_exceptions=True)
