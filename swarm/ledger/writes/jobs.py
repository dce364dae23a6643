"""Jobs: new runs, their launches and changes, the open work of a run, and the lease of the server by a study."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping, Sequence
from typing import Any

from swarm.errors import Conflict, LaunchConflict, LedgerError
from swarm.ledger import queries
from swarm.ledger.queries import IN_POOL, NEWEST_JOB
from swarm.ledger.rows import EvaluationState, JobRow, LeaseRow, OpenWork
from swarm.ledger.tables import JOBS, LEASES, to_json
from swarm.ledger.writes.batches import fail_closed_batches, rewind
from swarm.ledger.writes.events import count_closed, insert_event
from swarm.live_settings import JobChange
from swarm.schemas import EpisodeState

JOB_REPLACED = "job_replaced"


def insert_job(
    connection: sqlite3.Connection,
    job: Mapping[str, Any],
    resolved: Mapping[str, Any],
    *,
    from_weights: bool = False,
    key: str | None = None,
    initial_step: int = 0,
) -> JobRow:
    """Start a new run, whose steps count from `initial_step` and whose pool is empty.

    With `from_weights` it begins from the weights of the previous run, if there is one. The open work of the previous
    run is closed with the reason `job_replaced`.
    """
    close_books(connection)
    earlier = queries.latest_job(connection) if from_weights else None
    origin = None if earlier is None else (earlier.job_id, queries.last_trained_step(connection, earlier.job_id))
    row = connection.execute(
        "INSERT INTO jobs (job, resolved, created_at, origin_job_id, origin_step, initial_step)"
        " VALUES (?, ?, ?, ?, ?, ?) RETURNING *",
        (to_json(job), to_json(resolved), time.time(), *(origin or (None, None)), initial_step),
    ).fetchone()
    started = JOBS.decode(row)
    names = {name: started.resolved.get(name) for name in ("project_name", "experiment_name")}
    named = {} if key is None else {"key": key}
    weights = {} if origin is None else {"weights_of": {"job_id": origin[0], "step": origin[1]}}
    place = started.job.get("resume_from")
    checkpoint = {} if place is None else {"resume_from": {"path": place, "step": initial_step}}
    insert_event(connection, "job.started", {"job_id": started.job_id, **names, **named, **weights, **checkpoint})
    return started


def extend_job(connection: sqlite3.Connection, job: Mapping[str, Any], resolved: Mapping[str, Any]) -> JobRow:
    """Record the newest run's job anew, with another end. Steps and pool stay. Raise LedgerError without a job."""
    before = queries.latest_job(connection)
    row = connection.execute(
        f"UPDATE jobs SET job = ?, resolved = ? WHERE job_id = {NEWEST_JOB} RETURNING *",
        (to_json(job), to_json(resolved)),
    ).fetchone()
    if before is None or row is None:
        raise LedgerError("no job is on record: there is none to extend")
    extended = JOBS.decode(row)
    steps = {"from": before.resolved.get("total_steps"), "to": extended.resolved.get("total_steps")}
    insert_event(connection, "job.extended", {"job_id": extended.job_id, **steps})
    return extended


def insert_change(connection: sqlite3.Connection, change: JobChange) -> None:
    """Record other settings of the newest job from a step on. Raise Conflict unless this is the next revision."""
    job = queries.latest_job(connection)
    if job is None:
        raise LedgerError("no job is on record: there is none to change")
    last = queries.job_revision(connection, job.job_id)
    if change.revision != last + 1:
        raise Conflict(f"the job is at revision {last}: the next one is not {change.revision}")
    connection.execute(
        "INSERT INTO job_changes (job_id, revision, at_step, settings, at) VALUES (?, ?, ?, ?, ?)",
        (job.job_id, change.revision, change.at_step, to_json(dict(change.settings)), time.time()),
    )
    detail = {"revision": change.revision, "at_step": change.at_step, "settings": dict(change.settings)}
    insert_event(connection, "job.changed", {"job_id": job.job_id, **detail})


def answer_fault(
    connection: sqlite3.Connection,
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
        rewind(connection, back_to, kind)
    for change in changes:
        insert_change(connection, change)
    insert_event(connection, kind, detail)


def recover(connection: sqlite3.Connection, reason: str = "server_restarted") -> OpenWork:
    """Return the work to continue after a crash.

    Batches that were closed and never finished fail with `reason`. Running episodes continue, with one more system
    failure counted.
    """
    returned = fail_closed_batches(connection, reason)
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


def close_books(connection: sqlite3.Connection) -> None:
    """End all open work of the previous job, since the next job cannot train it."""
    fail_closed_batches(connection, JOB_REPLACED)
    expired = connection.execute(
        "UPDATE episodes SET state = ?, outcome = ?, ended_at = ? WHERE state IN ('running', 'prepared')",
        (EpisodeState.EXPIRED, JOB_REPLACED, time.time()),
    ).rowcount
    count_closed(connection, EpisodeState.EXPIRED, {JOB_REPLACED: expired})
    dropped = connection.execute(
        f"UPDATE episodes SET state = ?, outcome = ? WHERE {IN_POOL}", (EpisodeState.DROPPED, JOB_REPLACED)
    ).rowcount
    count_closed(connection, EpisodeState.DROPPED, {JOB_REPLACED: dropped})
    connection.execute(
        "UPDATE evaluations SET state = ?, reason = ?, ended_at = ? WHERE state IN ('due', 'running')",
        (EvaluationState.ABANDONED, JOB_REPLACED, time.time()),
    )


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
