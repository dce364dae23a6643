"""Counts of the work of this process's databases: statements, and the steps that SQLite takes to answer them.

A statement that reads ten times the rows takes about ten times the steps, however fast or busy the machine is.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine, event

STEPS_PER_CALL = 100
"""SQLite reports each time it has taken so many."""


@dataclass(slots=True)
class StatementMeter:
    """Counts since it was made."""

    statements: int = 0
    steps: int = 0

    def _on_connect(self, connection: sqlite3.Connection, _: object) -> None:
        connection.set_progress_handler(self._on_progress, STEPS_PER_CALL)

    def _on_progress(self) -> int:
        self.steps += STEPS_PER_CALL
        return 0

    def _on_statement(self, *_: Any) -> None:
        self.statements += 1


@contextmanager
def metered() -> Generator[StatementMeter]:
    """Count the work of connections that are opened inside of the block."""
    meter = StatementMeter()
    listeners = (("connect", meter._on_connect), ("before_cursor_execute", meter._on_statement))
    for name, listener in listeners:
        event.listen(Engine, name, listener)
    try:
        yield meter
    finally:
        for name, listener in listeners:
            event.remove(Engine, name, listener)
