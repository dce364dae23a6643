"""Leases and launches on record: which researcher has the server, and which run was started under which key."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping
from typing import Any

from swarm.errors import LaunchConflict
from swarm.ledger import queries
from swarm.ledger.rows import JobRow, LaunchRow, LeaseRow
from swarm.ledger.tables import JOBS, LEASES
from swarm.ledger.writes.events import insert_event
from swarm.ledger.writes.jobs import insert_job


def present_lease(connection: sqlite3.Connection) -> LeaseRow | None:
    """Return the lease that has not been ended. It may have expired, which is not known here."""
    row = connection.execute("SELECT * FROM leases WHERE ended_at IS NULL ORDER BY fence DESC LIMIT 1").fetchone()
    return None if row is None else LEASES.decode(row)


def insert_lease(
    connection: sqlite3.Connection,
    study_id: str,
    *,
    holder: str,
    host: str,
    pid: int,
    database: str,
    ttl_s: float,
) -> LeaseRow:
    """Record a new lease of the server. The lease before it ends."""
    connection.execute("UPDATE leases SET ended_at = ? WHERE ended_at IS NULL", (time.time(),))
    row = connection.execute(
        "INSERT INTO leases (study_id, holder, host, pid, database, ttl_s, since) VALUES (?, ?, ?, ?, ?, ?, ?)"
        " RETURNING *",
        (study_id, holder, host, pid, database, ttl_s, time.time()),
    ).fetchone()
    lease = LEASES.decode(row)
    detail = {"study_id": study_id, "host": host, "pid": pid, "database": database, "fence": lease.fence}
    insert_event(connection, "lease.taken", detail)
    return lease


def end_lease(connection: sqlite3.Connection, fence: int) -> None:
    """End a lease. Do nothing if it has ended."""
    ended = connection.execute(
        "UPDATE leases SET ended_at = ? WHERE fence = ? AND ended_at IS NULL RETURNING study_id", (time.time(), fence)
    ).fetchone()
    if ended is not None:
        insert_event(connection, "lease.released", {"study_id": ended["study_id"], "fence": fence})


def insert_launch(
    connection: sqlite3.Connection,
    key: str,
    job: Mapping[str, Any],
    resolved: Mapping[str, Any],
    *,
    initial_step: int = 0,
) -> JobRow:
    """Start a new run under a key. Raise LaunchConflict, with nothing changed, if another run has the key."""
    if connection.execute("SELECT 1 FROM launches WHERE key = ?", (key,)).fetchone() is not None:
        raise LaunchConflict(f"the run {key} was started before", param="key")
    started = insert_job(connection, job, resolved, key=key, initial_step=initial_step)
    connection.execute("INSERT INTO launches (key, job_id, at) VALUES (?, ?, ?)", (key, started.job_id, time.time()))
    return started


def launches(connection: sqlite3.Connection, key: str | None = None, limit: int = 100) -> list[LaunchRow]:
    """Return the runs that were started under a key, newest first; with a `key`, the run of that key alone."""
    rows = connection.execute(
        f"SELECT launches.key, launches.at, jobs.*, jobs.job_id = {queries.NEWEST_JOB} AS is_newest,"
        " coalesce((SELECT max(step) FROM batches WHERE batches.job_id = jobs.job_id AND state = 'trained'),"
        " jobs.initial_step) AS step"
        " FROM launches JOIN jobs USING (job_id) WHERE ?1 IS NULL OR key = ?1 ORDER BY jobs.job_id DESC LIMIT ?2",
        (key, limit),
    )
    return [LaunchRow(row["key"], JOBS.decode(row), row["at"], row["step"], bool(row["is_newest"])) for row in rows]


def newest_launch_key(connection: sqlite3.Connection) -> str | None:
    """Return the key of the newest job, or None if it was started without one."""
    row = connection.execute(f"SELECT key FROM launches WHERE job_id = {queries.NEWEST_JOB}").fetchone()
    return None if row is None else row["key"]
