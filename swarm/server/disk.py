"""How much room a server's directory takes, for the status.

Place in the flow: asked by commands.py for every status. A look at the files takes longer than the rest of a status, so
that one look serves all callers for a while. Knows nothing of what may be removed.
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
    """Used from one event loop."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._seen: DiskView | None = None
        self._looked_at = -LOOK_AGAIN_S
        self._turn = asyncio.Lock()

    async def view(self) -> DiskView | None:
        """What was seen within the last LOOK_AGAIN_S seconds. None if the directory cannot be looked at."""
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
