"""Events, states of the engine and control calls, as watchers and operators see them."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any

from swarm.ledger.rows import AuditRow
from swarm.ledger.writes.encoding import to_json
from swarm.schemas import EngineState


def insert_event(connection: sqlite3.Connection, at: float, kind: str, detail: Mapping[str, Any]) -> None:
    """Record an event."""
    connection.execute("INSERT INTO events (kind, detail, at) VALUES (?, ?, ?)", (kind, to_json(detail), at))


def insert_state(connection: sqlite3.Connection, at: float, state: EngineState, reason: str | None = None) -> None:
    """Record a state of the engine."""
    connection.execute("INSERT INTO states (state, reason, at) VALUES (?, ?, ?)", (state, reason, at))
    insert_event(connection, at, "engine.state", {"state": state, "reason": reason})


def insert_audit(connection: sqlite3.Connection, entry: AuditRow) -> None:
    """Record a control call."""
    connection.execute(
        "INSERT INTO audit (at, caller, address, method, path, status, request_id) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (entry.at, entry.caller, entry.address, entry.method, entry.path, entry.status, entry.request_id),
    )
