"""What the guard of a training did about a fault: the rewind, the changed settings and the event, all or none."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from swarm.ledger.writes.batches import rewind
from swarm.ledger.writes.events import insert_event
from swarm.ledger.writes.jobs import insert_change
from swarm.live_settings import JobChange


def answer_fault(
    connection: sqlite3.Connection,
    at: float,
    kind: str,
    detail: Mapping[str, Any],
    *,
    back_to: int | None,
    changes: Sequence[JobChange],
) -> None:
    """Record the event of an answer, with the weights back at the step `back_to` and the job changed.

    The weights stay where they are if `back_to` is None.
    """
    if back_to is not None:
        rewind(connection, at, back_to, kind)
    for change in changes:
        insert_change(connection, at, change)
    insert_event(connection, at, kind, detail)
