"""The progress of a ledger, kept outside of its folder, where an older copy of the folder is compared with it."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from pathlib import Path

from swarm.ledger import RecordLoss
from swarm.recorder.reading import LedgerReader
from swarm.schemas import Receipt
from swarm.sinks import LedgerProgress, ProgressSink

logger = logging.getLogger(__name__)

Tell = Callable[[Receipt, RecordLoss], bool]
"""A function that reports a loss with the receipt that proves it. It returns whether the loss is on record now."""


class ProgressRecording:
    """The progress of one ledger in one sink.

    It is first compared with what the sink has. A loss is told, and until it is on record the sink keeps what it has.
    """

    def __init__(self, reader: LedgerReader, sink: ProgressSink, home: Path, tell: Tell) -> None:
        self._reader = reader
        self._sink = sink
        self._home = str(home.absolute())
        self._tell = tell
        self._noted: LedgerProgress | None = None
        self._failure: str | None = None

    def catch_up(self, *, is_served: bool = True) -> bool:
        """Note the present progress, and return whether the sink has it."""
        try:
            return self._catch_up(is_served)
        except Exception as error:  # noqa: BLE001 - the boundary: a failure of a sink is logged
            # A sink may raise anything; its failure must not end the recording.
            if str(error) != self._failure:
                logger.error("the progress of the ledger is not recorded: %s; it is tried again", error)
            self._failure = str(error)
            return False

    def _catch_up(self, is_served: bool) -> bool:
        try:
            found = self._reader.progress(is_served=is_served)
        except sqlite3.Error:
            # The recording of the trainings names it.
            return False
        if found is None:
            return True
        history, acknowledged = found
        present = history.openings[-1]
        progress = LedgerProgress(present.ledger_id, present.opening, acknowledged, self._home)
        if progress == self._noted:
            return True
        known = self._sink.ledger_progress(history.ledger_ids) if self._noted is None else [self._noted]
        for each in known:
            receipt = Receipt(each.ledger_id, each.opening, each.acknowledged).sealed(history.secret)
            loss = history.find_loss(receipt, acknowledged)
            if loss is not None and not self._tell(receipt, loss):
                # The next look asks the sink again, which knows more than this ledger.
                self._noted = None
                return False
        self._sink.note_ledger(progress)
        self._noted = progress
        return True
