"""A process that prints what ledgers have, in the shapes of the control API, once their servers have ended.

For each ledger it prints a line with its digest and its jobs, or with its damage, and then a line for each episode. No
file is changed and none is left beside a ledger.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any

from swarm.errors import LedgerError
from swarm.gateway.control.views import view_detail, view_episode
from swarm.ledger import queries
from swarm.ledger.database import open_unchanged
from swarm.ledger.integrity.inspection import inspect

CHANGED_BY_COMPACTION = ("turns", "marks", "openings", "sqlite_sequence")
"""The tables that a compaction changes. It also changes one column of episodes, and adds an event."""
_OVER = "state NOT IN ('running', 'prepared') AND (reward IS NOT NULL OR calls > 0)"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m swarm.recorder.stored", description=__doc__)
    parser.add_argument("ledgers", nargs="+", type=Path)
    parser.add_argument("--episodes", action="store_true", help="print the episodes that count for costs")
    parser.add_argument("--turns", action="store_true", help="print eval episodes with their turns")
    asked = parser.parse_args(arguments)
    for path in asked.ledgers:
        for line in _read(path, has_episodes=asked.episodes, has_turns=asked.turns):
            sys.stdout.write(f"{json.dumps(line)}\n")
    return 0


def _read(path: Path, *, has_episodes: bool, has_turns: bool) -> Iterator[dict[str, Any]]:
    try:
        inspect(path, None)
        with closing(open_unchanged(path)) as connection:
            connection.row_factory = sqlite3.Row
            jobs = connection.execute("SELECT job_id, json_extract(resolved, '$.experiment_name') FROM jobs")
            yield {"ledger": str(path), "digest": _digest(connection), "jobs": dict(map(tuple, jobs))}
            yield from _episodes(connection, has_turns=has_turns) if has_episodes else ()
    except (LedgerError, sqlite3.Error) as error:
        yield {"ledger": str(path), "damage": error.message if isinstance(error, LedgerError) else str(error)}


def _episodes(connection: sqlite3.Connection, *, has_turns: bool) -> Iterator[dict[str, Any]]:
    for stored in connection.execute(f"SELECT * FROM episodes WHERE {_OVER} ORDER BY number"):
        row = queries.to_episode(stored)
        if has_turns and row.episode_type == "eval":
            yield {"detail": view_detail(row, queries.turns(connection, row.episode_id), None).model_dump(mode="json")}
        else:
            yield {"episode": view_episode(row).model_dump(mode="json")}


def _digest(connection: sqlite3.Connection) -> str:
    """Return the SHA-256 over all rows that a compaction leaves as they are."""
    digest = sha256()
    tables = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")
    for (name,) in tables.fetchall():
        if name in CHANGED_BY_COMPACTION:
            continue
        columns = (row["name"] for row in connection.execute(f"PRAGMA table_info({name})"))
        chosen = ", ".join(column for column in columns if column != "is_compacted")
        condition = "WHERE kind <> 'ledger.compacted'" if name == "events" else ""
        digest.update(f"{name}\n".encode())
        for row in connection.execute(f"SELECT {chosen} FROM {name} {condition} ORDER BY {chosen}"):
            digest.update(f"{json.dumps(tuple(row))}\n".encode())
    return digest.hexdigest()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
