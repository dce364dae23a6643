"""The openings of a ledger, by which it knows episodes that it acknowledged and that an older copy of it lacks."""

from __future__ import annotations

import json
import secrets
import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass

from swarm.schemas import Receipt

LOST_EPISODES = "episodes.lost"
"""The event of a loss that a receipt has proved."""


@dataclass(frozen=True, slots=True)
class Opening:
    """One opening of a ledger by a server: the ledger's id and its acknowledged episodes at that time."""

    opening: str
    ledger_id: str
    acknowledged: int


@dataclass(frozen=True, slots=True)
class RecordLoss:
    """Episodes that are not on record: `missing` ones were acknowledged after the first `after`."""

    after: int
    missing: int

    def __str__(self) -> str:
        were = "was" if self.missing == 1 else "were"
        unknown = f"episodes after {self.after:,} unknown, {self.missing:,} of them {were} acknowledged"
        return f"restored from a copy: {unknown}"


@dataclass(frozen=True, slots=True)
class LedgerHistory:
    """All openings that a ledger has on record, oldest first, and the secret that seals its receipts."""

    openings: Sequence[Opening]
    secret: str

    @property
    def ledger_ids(self) -> frozenset[str]:
        """Return the present id of the ledger, and those that it had before it lost its control file."""
        return frozenset(opening.ledger_id for opening in self.openings)

    def receipt(self, acknowledged: int) -> Receipt:
        """Return a receipt of the present opening."""
        present = self.openings[-1]
        return Receipt(present.ledger_id, present.opening, acknowledged).sealed(self.secret)

    def find_loss(self, receipt: Receipt, acknowledged: int) -> RecordLoss | None:
        """Return the loss that a receipt proves, or None. The ledger has `acknowledged` episodes now.

        A copy of the ledger lacks the openings after it, or has a later opening where the receipt goes further.
        """
        if receipt.opening == self.openings[-1].opening:
            after = acknowledged
        elif receipt.ledger_id not in self.ledger_ids:
            return None
        else:
            names = [opening.opening for opening in self.openings]
            is_known = receipt.opening in names
            later = self.openings[names.index(receipt.opening) + 1 :] if is_known else self.openings
            ends = (each.acknowledged for each in later if is_known or each.opening > receipt.opening)
            after = next(ends, acknowledged)
        missing = receipt.acknowledged - after
        return RecordLoss(after, missing) if missing > 0 else None


def insert_opening(connection: sqlite3.Connection) -> None:
    """Record that a server opens the ledger. Raise sqlite3.Error."""
    name = f"{time.time_ns():016x}{secrets.token_hex(4)}"
    connection.execute(
        "INSERT INTO openings (opening, ledger_id, acknowledged) SELECT ?, ledger_id, acknowledged FROM marks", (name,)
    )


def read_history(connection: sqlite3.Connection) -> LedgerHistory:
    """Return the openings on record. Raise sqlite3.Error."""
    rows = connection.execute("SELECT opening, ledger_id, acknowledged FROM openings ORDER BY number").fetchall()
    secret = connection.execute("SELECT secret FROM marks").fetchone()[0]
    return LedgerHistory(tuple(Opening(*row) for row in rows), secret)


def read_losses(connection: sqlite3.Connection) -> list[tuple[RecordLoss, float]]:
    """Return the losses on record, each with the time at which it was noticed. Raise sqlite3.Error."""
    rows = connection.execute("SELECT detail, at FROM events WHERE kind = ? ORDER BY event_id", (LOST_EPISODES,))
    return [(RecordLoss(**json.loads(detail)), at) for detail, at in rows.fetchall()]
