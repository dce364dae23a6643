"""The reads of a ledger: one function per question, from database rows to frozen rows."""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Sequence

from swarm.demonstrations import digest_demonstrations
from swarm.errors import LedgerError, NotFound, UnknownParameter
from swarm.ledger.rows import (
    AuditRow,
    BatchRow,
    ClosedEpisode,
    EpisodeRow,
    EpisodeSlice,
    EventRow,
    JobRow,
    JobUse,
    LaunchRow,
    LeaseRow,
    ModelUse,
    RecordedEpisode,
    StateRow,
    TaskRow,
)
from swarm.ledger.tables import (
    AUDIT,
    BATCHES,
    EPISODES,
    EVENTS,
    JOB_CHANGES,
    JOBS,
    LEASES,
    RESULT_COLUMNS,
    STATES,
    TURNS,
    is_intact,
    to_sampling,
)
from swarm.live_settings import JobChange
from swarm.schemas import EpisodeState
from swarm.types import EpisodeType, Turn

# Clients choose abort reasons, so there may be any number; a status page lists the most frequent ones.
MAX_FAILURE_REASONS = 100

ALL = -1
"""The limit that SQLite takes for none."""
NEWEST_JOB = "(SELECT max(job_id) FROM jobs)"
IN_POOL = "state = 'completed' AND episode_type = 'train' AND batch_id IS NULL"
"""The condition, in SQL, of an episode that waits for a batch."""


def latest_job(connection: sqlite3.Connection) -> JobRow | None:
    """Return the newest job, or None if no job is on record."""
    row = connection.execute("SELECT * FROM jobs ORDER BY job_id DESC LIMIT 1").fetchone()
    return None if row is None else JOBS.decode(row)


def job(connection: sqlite3.Connection, job_id: int) -> JobRow:
    """Return one run of this ledger. Raise NotFound."""
    row = connection.execute("SELECT * FROM jobs WHERE job_id = ?", (job_id,)).fetchone()
    if row is None:
        raise NotFound(f"no run {job_id} is on record")
    return JOBS.decode(row)


def last_trained_step(connection: sqlite3.Connection, job_id: int) -> int:
    """Return the last step that a run has trained, or the one that it began at."""
    return connection.execute(
        "SELECT coalesce((SELECT max(step) FROM batches WHERE job_id = ?1 AND state = 'trained'), initial_step)"
        " FROM jobs WHERE job_id = ?1",
        (job_id,),
    ).fetchone()[0]


def job_changes(connection: sqlite3.Connection, job_id: int) -> list[JobChange]:
    """Return the changes of one run, in their order."""
    rows = connection.execute("SELECT * FROM job_changes WHERE job_id = ? ORDER BY revision", (job_id,))
    return [JOB_CHANGES.decode(row) for row in rows]


def job_revision(connection: sqlite3.Connection, job_id: int) -> int:
    """Return how many changes one run has had."""
    return connection.execute("SELECT count(*) FROM job_changes WHERE job_id = ?", (job_id,)).fetchone()[0]


def present_lease(connection: sqlite3.Connection) -> LeaseRow | None:
    """Return the lease that has not been ended. It may have expired, which is not known here."""
    row = connection.execute("SELECT * FROM leases WHERE ended_at IS NULL ORDER BY fence DESC LIMIT 1").fetchone()
    return None if row is None else LEASES.decode(row)


def launches(connection: sqlite3.Connection, key: str | None = None, limit: int = 100) -> list[LaunchRow]:
    """Return the runs that were started under a key, newest first; with a `key`, the run of that key alone."""
    rows = connection.execute(
        f"SELECT launches.key, launches.at, jobs.*, jobs.job_id = {NEWEST_JOB} AS is_newest,"
        " coalesce((SELECT max(step) FROM batches WHERE batches.job_id = jobs.job_id AND state = 'trained'),"
        " jobs.initial_step) AS step"
        " FROM launches JOIN jobs USING (job_id) WHERE ?1 IS NULL OR key = ?1 ORDER BY jobs.job_id DESC LIMIT ?2",
        (key, limit),
    )
    return [LaunchRow(row["key"], JOBS.decode(row), row["at"], row["step"], bool(row["is_newest"])) for row in rows]


def newest_launch_key(connection: sqlite3.Connection) -> str | None:
    """Return the key of the newest job, or None if it was started without one."""
    row = connection.execute(f"SELECT key FROM launches WHERE job_id = {NEWEST_JOB}").fetchone()
    return None if row is None else row["key"]


def states(connection: sqlite3.Connection, limit: int = 100) -> list[StateRow]:
    """Return the newest changes of the engine state, oldest first."""
    rows = connection.execute("SELECT * FROM states ORDER BY state_id DESC LIMIT ?", (limit,)).fetchall()
    return [STATES.decode(row) for row in reversed(rows)]


def events(connection: sqlite3.Connection, after_id: int = 0, limit: int = 100) -> list[EventRow]:
    """Return events beyond `after_id`, oldest first."""
    rows = connection.execute("SELECT * FROM events WHERE event_id > ? ORDER BY event_id LIMIT ?", (after_id, limit))
    return [EVENTS.decode(row) for row in rows]


def newest_events(connection: sqlite3.Connection, limit: int) -> list[EventRow]:
    """Return the newest events, oldest first."""
    newest = connection.execute("SELECT coalesce(max(event_id), 0) FROM events").fetchone()[0]
    return events(connection, max(0, newest - limit), limit)


def audit(connection: sqlite3.Connection, after_id: int = 0, limit: int = 100) -> list[AuditRow]:
    """Return control calls beyond `after_id`, oldest first."""
    rows = connection.execute("SELECT * FROM audit WHERE audit_id > ? ORDER BY audit_id LIMIT ?", (after_id, limit))
    return [AUDIT.decode(row) for row in rows]


def episode(connection: sqlite3.Connection, episode_id: str) -> EpisodeRow:
    """Return one episode. Raise NotFound, or LedgerError if its row is damaged."""
    row = connection.execute("SELECT * FROM episodes WHERE episode_id = ?", (episode_id,)).fetchone()
    if row is None:
        raise NotFound(f"no episode {episode_id!r} is on record", param="episode_id")
    return to_episode(row)


def episodes(
    connection: sqlite3.Connection,
    *,
    state: EpisodeState | None = None,
    episode_type: EpisodeType | None = None,
    client_id: str | None = None,
    task_id: str | None = None,
    batch_id: str | None = None,
    cursor: str | None = None,
    limit: int = 100,
) -> EpisodeSlice:
    """Return episodes of every job, newest first. Raise UnknownParameter for a cursor that is not of this ledger."""
    filters: dict[str, str | None] = {
        "state": state,
        "episode_type": episode_type,
        "client_id": client_id,
        "task_id": task_id,
        "batch_id": batch_id,
    }
    conditions = {f"{column} = ?": value for column, value in filters.items() if value is not None}
    if cursor is not None:
        if not (cursor.isascii() and cursor.isdecimal() and len(cursor) <= 18):
            raise UnknownParameter(f"cursor {cursor!r} is not one this server gave out", param="cursor")
        conditions["number < ?"] = cursor
    where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
    rows = connection.execute(
        f"SELECT * FROM episodes {where} ORDER BY number DESC LIMIT ?", (*conditions.values(), limit + 1)
    ).fetchall()
    shown = rows[:limit]
    next_cursor = str(shown[-1]["number"]) if len(rows) > limit else None
    return EpisodeSlice(tuple(to_episode(row) for row in shown), next_cursor)


def closed_episodes(connection: sqlite3.Connection, limit: int) -> list[ClosedEpisode]:
    """Return the newest episodes of every job that have ended, oldest first."""
    rows = connection.execute(
        "SELECT episode_id, api_key_sha256, coalesce(outcome, state) AS reason FROM episodes"
        " WHERE state NOT IN ('running', 'prepared') ORDER BY number DESC LIMIT ?",
        (limit,),
    ).fetchall()
    return [ClosedEpisode(**dict(row)) for row in reversed(rows)]


def transaction(connection: sqlite3.Connection, transaction_sha256: str) -> EpisodeRow | None:
    """Return the episode whose commit decides, or None if the transaction is not decided here.

    The search uses a digest, so that its duration reveals nothing about any secret.
    """
    row = connection.execute(
        "SELECT * FROM episodes WHERE transaction_sha256 = ? AND inquiry_url IS NULL", (transaction_sha256,)
    ).fetchone()
    return None if row is None else to_episode(row)


def turns(connection: sqlite3.Connection, episode_id: str) -> tuple[Turn, ...]:
    """Return the recorded turns of an episode by index."""
    rows = connection.execute("SELECT * FROM turns WHERE episode_id = ? ORDER BY turn_index", (episode_id,))
    return tuple(_to_turn(row) for row in rows)


def episodes_with_turns(connection: sqlite3.Connection, condition: str, order: str) -> tuple[RecordedEpisode, ...]:
    """Return episodes of the newest job with their turns. `condition` and `order` are SQL, never user input."""
    rows = connection.execute(
        f"SELECT * FROM episodes WHERE job_id = {NEWEST_JOB} AND {condition} ORDER BY {order}"
    ).fetchall()
    return tuple(RecordedEpisode(to_episode(row), turns(connection, row["episode_id"])) for row in rows)


def batch_episodes(connection: sqlite3.Connection, batch_id: str) -> tuple[RecordedEpisode, ...]:
    """Return the members of a batch with their turns, in the order in which they began."""
    rows = connection.execute("SELECT * FROM episodes WHERE batch_id = ? ORDER BY number", (batch_id,)).fetchall()
    return tuple(RecordedEpisode(to_episode(row), turns(connection, row["episode_id"])) for row in rows)


def trained_batches(
    connection: sqlite3.Connection, after_step: int = 0, limit: int = ALL, job_id: int | None = None
) -> list[BatchRow]:
    """Return the batches trained beyond `after_step` and not rewound since, by step.

    Without a `job_id` they are of the newest run.
    """
    rows = connection.execute(
        f"SELECT * FROM batches WHERE job_id = coalesce(?, {NEWEST_JOB}) AND state = 'trained' AND step > ?"
        " ORDER BY step LIMIT ?",
        (job_id, after_step, limit),
    )
    return [BATCHES.decode(row) for row in rows]


def first_step_without_tokens(connection: sqlite3.Connection, after_step: int, up_to_step: int) -> int | None:
    """Return the first of these steps whose batch cannot be trained again, because some of its tokens were removed."""
    return connection.execute(
        "SELECT min(b.step) FROM batches AS b JOIN episodes AS e ON e.batch_id = b.batch_id"
        f" WHERE b.job_id = {NEWEST_JOB} AND b.state = 'trained' AND b.step > ? AND b.step <= ?"
        " AND e.turns > (SELECT count(*) FROM turns AS t WHERE t.episode_id = e.episode_id)",
        (after_step, up_to_step),
    ).fetchone()[0]


def trained_groups_by_source(connection: sqlite3.Connection) -> dict[str, int]:
    """Return how many groups of each data source have been trained."""
    rows = connection.execute(
        f"SELECT data_source, n FROM trained_groups WHERE job_id = {NEWEST_JOB} ORDER BY data_source"
    )
    return {row["data_source"]: row["n"] for row in rows}


def batches(connection: sqlite3.Connection, limit: int = 100) -> list[BatchRow]:
    """Return the newest batches, newest first."""
    rows = connection.execute(
        f"SELECT * FROM batches WHERE job_id = {NEWEST_JOB} ORDER BY rowid DESC LIMIT ?", (limit,)
    )
    return [BATCHES.decode(row) for row in rows]


def task_counts(connection: sqlite3.Connection) -> list[TaskRow]:
    """Return the tasks of the newest job with episodes that are trained or wait to be, by task id."""
    rows = connection.execute(
        "SELECT e.task_id, e.data_source, count(DISTINCT e.batch_id || ' ' || e.batch_group) AS groups,"
        " sum(e.batch_id IS NULL) AS waiting FROM episodes AS e LEFT JOIN batches AS b ON b.batch_id = e.batch_id"
        f" WHERE e.job_id = {NEWEST_JOB} AND e.episode_type = 'train' AND e.task_id IS NOT NULL"
        " AND ((e.state = 'completed' AND e.batch_id IS NULL) OR b.state IN ('closed', 'trained'))"
        " GROUP BY e.task_id, e.data_source ORDER BY e.task_id, e.data_source"
    )
    return [TaskRow(**dict(row)) for row in rows]


def failures(connection: sqlite3.Connection) -> dict[str, int]:
    """Return how many episodes were aborted, expired or dropped, by reason.

    Only the most frequent reasons are included.
    """
    rows = connection.execute(
        f"SELECT outcome, sum(n) AS n FROM episode_counts WHERE job_id = {NEWEST_JOB} AND state <> 'trained'"
        " GROUP BY outcome ORDER BY n DESC, outcome LIMIT ?",
        (MAX_FAILURE_REASONS,),
    )
    return {row["outcome"]: row["n"] for row in rows}


def episode_counts(connection: sqlite3.Connection) -> dict[tuple[str, str], int]:
    """Return how many episodes of the newest job there are by state and outcome, "" where there is none."""
    rows = connection.execute(
        f"SELECT state, outcome, n FROM episode_counts WHERE job_id = {NEWEST_JOB} UNION ALL"
        f" SELECT state, '', count(*) FROM episodes WHERE job_id = {NEWEST_JOB}"
        " AND state IN ('running', 'prepared', 'completed') GROUP BY state"
    )
    return {(row["state"], row["outcome"]): row["n"] for row in rows}


_ENDED = (
    f"FROM episodes WHERE job_id = {NEWEST_JOB} AND episode_type = ? AND state NOT IN ('running', 'prepared')"
    " AND (reward IS NOT NULL OR calls > 0)"
)


def job_use(connection: sqlite3.Connection, episode_type: EpisodeType) -> JobUse:
    """Return the model use of all episodes of one type in the newest job."""
    kind = (episode_type.value,)
    total = connection.execute(
        "SELECT count(*) AS episodes, total(calls) AS calls, total(prompt_tokens) AS prompt_tokens,"
        " total(sampled_tokens) AS sampled_tokens, total(system_failures) AS system_failures,"
        " total(overruled) AS overruled, total(is_limited) AS limited, total(system_failures > 0) AS faulty,"
        f" total(max(0, ended_at - begun_at)) AS seconds, avg(model_share) AS model_share {_ENDED}",
        kind,
    ).fetchone()
    settings = connection.execute(f"SELECT DISTINCT sampling {_ENDED}", kind)
    sampling = tuple(dict.fromkeys(each for row in settings for each in to_sampling(row["sampling"])))
    asked = connection.execute(f"SELECT DISTINCT asked {_ENDED} AND asked != '[]'", kind)
    named = tuple(dict.fromkeys(each for row in asked for each in json.loads(row["asked"])))
    unrewarded = connection.execute(
        f"SELECT coalesce(outcome, state) AS outcome, count(*) AS n {_ENDED} AND reward IS NULL"
        " GROUP BY 1 ORDER BY n DESC, 1 LIMIT ?",
        (*kind, MAX_FAILURE_REASONS),
    )
    counted = ("calls", "prompt_tokens", "sampled_tokens", "system_failures", "overruled")
    counts = {name: int(total[name]) for name in counted}
    return JobUse(
        total["episodes"],
        ModelUse(**counts, sampling=sampling, is_limited=total["limited"] > 0, asked=named),
        total["seconds"],
        int(total["limited"]),
        int(total["faulty"]),
        {row["outcome"]: row["n"] for row in unrewarded},
        total["model_share"],
    )


def demonstrations(connection: sqlite3.Connection, digest: str) -> bytes | None:
    """Return stored demonstrations as JSON lines, or None. Raise LedgerError if they are not what was stored."""
    row = connection.execute("SELECT content FROM demonstrations WHERE digest = ?", (digest,)).fetchone()
    if row is None:
        return None
    try:
        content = zlib.decompress(row["content"])
    except zlib.error:
        content = b""
    if digest_demonstrations(content) != digest:
        raise LedgerError(f"the demonstrations {digest} are damaged: restore a backup of the server's home")
    return content


def to_episode(row: sqlite3.Row) -> EpisodeRow:
    _require_intact(row, RESULT_COLUMNS, f"episode {row['episode_id']}")
    return EPISODES.decode(row)


def _to_turn(row: sqlite3.Row) -> Turn:
    _require_intact(row, TURNS.columns, f"turn {row['turn_index']} of episode {row['episode_id']}")
    return TURNS.decode(row)


def _require_intact(row: sqlite3.Row, columns: Sequence[str], what: str) -> None:
    """Raise LedgerError for a row that is not as it was written."""
    if not is_intact(row["checksum"], [row[name] for name in columns]):
        raise LedgerError(
            f"{what} is damaged: its content is not what was written; `swarm doctor --home HOME` looks for more damage"
        )
