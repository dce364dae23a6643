"""The way of new weights from a trainer to the replicas, and the sharing of devices between both."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from swarm.backends.replicas.layout import WeightFile, WeightSource
from swarm.errors import SwarmError
from swarm.sampler import EngineLost

PUBLISH_TIMEOUT_S: Final = 600.0
"""Time for every replica to read the file; the sampler has its own deadline for each call."""
SHARED_MEMORY: Final = Path("/dev/shm")

Publish = Callable[[WeightSource], Awaitable[None]]
Step = Callable[[], Awaitable[None]]


async def nothing() -> None:
    """Do nothing: `suspend` and `resume` if trainer and sampler have devices of their own."""


def shared_memory_of(home: Path) -> Path:
    """Return the directory for new weights of the server with this home, for replicas on the same host."""
    return SHARED_MEMORY / f"swarm-{hashlib.sha256(str(home.resolve()).encode()).hexdigest()[:16]}"


class Handover:
    """Publisher of one version after another, which removes the file of the one before.

    `suspend` and `resume` put a sampler on the same GPUs to sleep while the trainer uses them.
    """

    def __init__(
        self, publish: Publish, *, limit_s: float = PUBLISH_TIMEOUT_S, suspend: Step = nothing, resume: Step = nothing
    ) -> None:
        self._publish = publish
        self._limit_s = limit_s
        self._suspend, self._resume = suspend, resume
        self._published: WeightFile | None = None

    def forget(self) -> None:
        """Forget the published file: the sampler is back at the base model, and the writer has removed the file."""
        self._published = None

    @asynccontextmanager
    async def sampler_asleep(self) -> AsyncGenerator[None]:
        """Give the devices to the trainer inside the block."""
        await self._suspend()
        try:
            yield
        finally:
            await self._resume()

    async def hand_over(self, new: WeightFile) -> None:
        """Publish a file, and remove the file of the version before. Raise EngineLost."""

        async def replace() -> None:
            await self._publish(new)
            previous, self._published = self._published, new
            if previous is not None:
                previous.path.unlink(missing_ok=True)

        await self.within_limit(new.version, replace())

    async def within_limit(self, version: int, publishing: Awaitable[None]) -> None:
        """Wait for the publication. Raise EngineLost if it fails or exceeds the time limit.

        The trainer already has the new weights at that point, so trainer and sampler are both started anew.
        """
        try:
            async with asyncio.timeout(self._limit_s):
                await publishing
        except TimeoutError:
            raise EngineLost(f"weight version {version} was not published within {self._limit_s:g} s") from None
        except SwarmError as error:
            raise EngineLost(f"weight version {version} could not be published: {error.message}") from error
