"""Counts that are updated with each write, because counting rows takes seconds once there are millions."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

from swarm.ledger.queries import NEWEST_JOB
from swarm.schemas import EpisodeState


def count_acknowledged(connection: sqlite3.Connection) -> None:
    """Count an episode whose client is about to be told that its result is stored."""
    connection.execute("UPDATE marks SET acknowledged = acknowledged + 1")


def count_closed(connection: sqlite3.Connection, state: EpisodeState, by_outcome: Mapping[str, int]) -> None:
    """Add episodes that have reached a final state to the counts of their job."""
    connection.executemany(
        f"INSERT INTO episode_counts (job_id, state, outcome, n) VALUES ({NEWEST_JOB}, ?, ?, ?)"
        " ON CONFLICT DO UPDATE SET n = n + excluded.n",
        [(state.value, outcome, n) for outcome, n in by_outcome.items() if n],
    )
