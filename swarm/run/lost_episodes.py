"""The acknowledged episodes that a server does not have, because its ledger was restored from an older copy."""

from __future__ import annotations

import logging
import time

from swarm.errors import LedgerError
from swarm.ledger import LOST_EPISODES, Ledger, RecordLoss
from swarm.schemas import LostEpisodesView

logger = logging.getLogger(__name__)


class LostEpisodes:
    """The losses that receipts have proved, by the place in the record. It is used from one event loop.

    A loss stays on record, as an event, for the life of the ledger.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._found: dict[int, LostEpisodesView] = {}

    async def restore(self) -> None:
        """Load the losses that were noticed before."""
        for loss, noticed_at in await self._ledger.losses():
            self._note(loss, noticed_at)

    def views(self) -> list[LostEpisodesView]:
        """Return all losses, the one of the earliest episodes first."""
        return [self._found[after] for after in sorted(self._found)]

    async def check(self, receipt: str) -> None:
        """Record what a receipt proves to be lost, once. A receipt that this ledger has not given says nothing."""
        loss = self._ledger.find_loss(receipt)
        known = None if loss is None else self._found.get(loss.after)
        if loss is None or (known is not None and known.missing >= loss.missing):
            return
        self._note(loss, time.time())
        logger.warning("the ledger was %s", loss)
        try:
            await self._ledger.record_event(LOST_EPISODES, {"after": loss.after, "missing": loss.missing})
        except LedgerError as error:
            logger.error("the loss could not be recorded: %s", error.message)
            # The next call with such a receipt records it.
            del self._found[loss.after]

    def _note(self, loss: RecordLoss, noticed_at: float) -> None:
        known = self._found.get(loss.after)
        if known is None or known.missing < loss.missing:
            noticed_at = noticed_at if known is None else known.noticed_at
            self._found[loss.after] = LostEpisodesView(
                after=loss.after, missing=loss.missing, noticed_at=noticed_at, sentence=str(loss)
            )
