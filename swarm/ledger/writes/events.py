"""Events, states of the engine, control calls, and counts that are updated with each write."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping
from typing import Any

from swarm.ledger.queries import NEWEST_JOB
from swarm.ledger.rows import AuditRow
from swarm.ledger.tables import AUDIT, to_json
from swarm.schemas import EngineState, EpisodeState

_INSERT_AUDIT = AUDIT.insert()


def insert_event(connection: sqlite3.Connection, kind: str, detail: Mapping[str, Any]) -> None:
    """Record an event."""
    connection.execute("INSERT INTO events (kind, detail, at) VALUES (?, ?, ?)", (kind, to_json(detail), time.time()))


def insert_state(connection: sqlite3.Connection, state: EngineState, reason: str | None = None) -> None:
    """Record a state of the engine."""
    connection.execute("INSERT INTO states (state, reason, at) VALUES (?, ?, ?)", (state, reason, time.time()))
    insert_event(connection, "engine.state", {"state": state, "reason": reason})


def insert_audit(connection: sqlite3.Connection, entry: AuditRow) -> None:
    """Record a control call."""
    connection.execute(_INSERT_AUDIT, {**AUDIT.encode(entry), "audit_id": None})


def count_acknowledged(connection: sqlite3.Connection) -> None:
    """Count an episode whose client is about to be told that its result is stored."""
    connection.execute("UPDATE marks SET acknowledged = acknowledged + 1")


def count_closed(connection: sqlite3.Connection, state: EpisodeState, by_outcome: Mapping[str, int]) -> None:
    """Add episodes that have reached a final state to the counts of their job.

    Counting rows instead takes seconds once there are millions.
    """
    connection.executemany(
        f"INSERT INTO episode_counts (job_id, state, outcome, n) VALUES ({NEWEST_JOB}, ?, ?, ?)"
        " ON CONFLICT DO UPDATE SET n = n + excluded.n",
        [(state.value, outcome, n) for outcome, n in by_outcome.items() if n],
    )
