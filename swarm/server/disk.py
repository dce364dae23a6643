"""The disk space that a server's directory takes, for the status.

Place in the flow: commands.py calls it for every status. Measuring the files takes longer than the rest of a status, so
each result is cached for LOOK_AGAIN_S seconds. The module does not know which files may be removed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

from swarm.schemas import DiskView
from swarm.trainer.run_directories import DiskUse

logger = logging.getLogger(__name__)

LOOK_AGAIN_S = 30.0


class DiskMeter:
    """A cached measurement of a directory's disk use. It is used from one event loop."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._seen: DiskView | None = None
        self._looked_at = -LOOK_AGAIN_S
        self._turn = asyncio.Lock()

    async def view(self) -> DiskView | None:
        """Return the disk use, at most LOOK_AGAIN_S seconds old, or None if the directory cannot be read."""
        async with self._turn:
            if time.monotonic() - self._looked_at >= LOOK_AGAIN_S:
                self._seen = await asyncio.to_thread(_look, self._home)
                self._looked_at = time.monotonic()
        return self._seen


def _look(home: Path) -> DiskView | None:
    try:
        use = DiskUse.of(home)
    except OSError as error:
        logger.error("%s cannot be looked at: %s", home, error)
        return None
    return DiskView(
        ledger_bytes=use.ledger,
        checkpoints_bytes=use.checkpoints + use.recovery,
        recovery_bytes=use.recovery,
        free_bytes=use.free,
    )
