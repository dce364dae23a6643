"""The open work of a job: continued after a crash, or closed when another job begins."""

from __future__ import annotations

import sqlite3

from swarm.ledger import queries
from swarm.ledger.queries import IN_POOL, NEWEST_JOB
from swarm.ledger.rows import EvaluationState, OpenWork
from swarm.ledger.writes.batches import fail_closed_batches
from swarm.ledger.writes.counts import count_closed
from swarm.schemas import EpisodeState

JOB_REPLACED = "job_replaced"


def recover(connection: sqlite3.Connection, at: float, reason: str = "server_restarted") -> OpenWork:
    """Return the work to continue after a crash.

    Batches that were closed and never finished fail with `reason`. Running episodes continue, with one more system
    failure counted.
    """
    returned = fail_closed_batches(connection, at, reason)
    last = connection.execute(
        f"SELECT step, weight_version FROM batches WHERE job_id = {NEWEST_JOB} AND state = 'trained'"
        " ORDER BY step DESC LIMIT 1"
    ).fetchone()
    # An agent may have had a call in progress, or have found no server to call.
    connection.execute(
        f"UPDATE episodes SET system_failures = system_failures + 1 WHERE job_id = {NEWEST_JOB} AND state = 'running'"
    )
    waiting = queries.episodes_with_turns(connection, IN_POOL, "ended_at, number")
    running = queries.episodes_with_turns(connection, "state IN ('running', 'prepared')", "number")
    job = queries.latest_job(connection)
    initial = 0 if job is None else job.initial_step
    return OpenWork(
        job=job,
        step=initial if last is None else last["step"],
        weight_version=initial if last is None else last["weight_version"],
        running=running,
        returned=returned,
        completed=waiting,
    )


def close_books(connection: sqlite3.Connection, at: float) -> None:
    """End all open work of the previous job, since the next job cannot train it."""
    fail_closed_batches(connection, at, JOB_REPLACED)
    expired = connection.execute(
        "UPDATE episodes SET state = ?, outcome = ?, ended_at = ? WHERE state IN ('running', 'prepared')",
        (EpisodeState.EXPIRED, JOB_REPLACED, at),
    ).rowcount
    count_closed(connection, EpisodeState.EXPIRED, {JOB_REPLACED: expired})
    dropped = connection.execute(
        f"UPDATE episodes SET state = ?, outcome = ? WHERE {IN_POOL}", (EpisodeState.DROPPED, JOB_REPLACED)
    ).rowcount
    count_closed(connection, EpisodeState.DROPPED, {JOB_REPLACED: dropped})
    connection.execute(
        "UPDATE evaluations SET state = ?, reason = ?, ended_at = ? WHERE state IN ('due', 'running')",
        (EvaluationState.ABANDONED, JOB_REPLACED, at),
    )
