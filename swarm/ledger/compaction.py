"""The removal of old tokens from a ledger, so that its file becomes smaller."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from swarm.errors import LedgerUnwritable
from swarm.ledger import queries
from swarm.ledger.database import log_of, reading
from swarm.ledger.integrity.opening import OpenLedger, open_ledger
from swarm.ledger.rows import JobRow
from swarm.ledger.writes.events import insert_event

_DROPPED = f"""
    SELECT e.episode_id FROM episodes AS e LEFT JOIN batches AS b ON b.batch_id = e.batch_id
    WHERE e.turns > 0
    AND e.state NOT IN ('running', 'prepared')
    AND NOT (e.state = 'completed' AND e.episode_type = 'train' AND (b.state IS NULL OR b.state = 'closed'))
    AND NOT (b.state IS 'trained' AND b.job_id = {queries.NEWEST_JOB} AND b.step > :after_step)
    AND coalesce(e.ended_at, e.begun_at) < :ended_before
"""
_BYTES_OF_A_TURN = " + ".join(
    f"length(CAST({column} AS BLOB))"
    for column in ("prompt_ids", "output_ids", "logprobs", "weight_versions", "params", "messages", "reply", "tools")
)


@dataclass(frozen=True, slots=True)
class NewestRun:
    """The newest job of a ledger, and the last step that it has trained, or the one that it began at."""

    job: JobRow
    step: int


@dataclass(frozen=True, slots=True)
class Compacted:
    """The effect of a compaction: `episodes` lost their tokens, and `turns` of their turns were removed.

    Sizes are those of the ledger's files, in bytes.
    """

    episodes: int
    turns: int
    bytes_before: int
    bytes_after: int


def newest_run(path: Path) -> NewestRun | None:
    """Return the newest job with its last step, or None if no job is on record. Raise LedgerError."""
    with reading(path) as connection:
        job = queries.latest_job(connection)
        return None if job is None else NewestRun(job, queries.last_trained_step(connection, job.job_id))


def estimate_compaction(path: Path, *, after_step: int, ended_before: float) -> Compacted:
    """Return what `compact` would do, without doing it. The size afterwards is an estimate. Raise LedgerError."""
    with reading(path) as connection:
        found = connection.execute(
            f"SELECT count(DISTINCT episode_id), count(*), coalesce(sum({_BYTES_OF_A_TURN}), 0) FROM turns"
            f" WHERE episode_id IN ({_DROPPED})",
            {"after_step": after_step, "ended_before": ended_before},
        ).fetchone()
    before = _size(path)
    return Compacted(found[0], found[1], before, max(before - found[2], 0))


def compact(path: Path, *, after_step: int, ended_before: float) -> Compacted:
    """Remove the turns that nothing needs any more, and return their space to the disk. The caller holds the lock.

    Three kinds of turns stay. The first are those of batches of the newest job that were trained beyond `after_step`.
    The second are those of all that waits to be trained. The third are those of episodes that ended at `ended_before`
    (seconds since the epoch) or later. A process killed at any point leaves the ledger as it was before or as it is
    afterwards.

    Raise LedgerUnwritable if the disk refuses, or LedgerError.
    """
    before = _size(path)
    opened = open_ledger(path)
    try:
        with closing(opened):
            episodes, turns = _drop(opened, after_step, ended_before)
            opened.connection.execute("VACUUM")
    except sqlite3.Error as error:
        raise LedgerUnwritable(
            f"{path} was not compacted ({error}): compaction needs as much free space as the compacted file",
            retry_after_s=60,
        ) from error
    return Compacted(episodes, turns, before, _size(path))


def _drop(opened: OpenLedger, after_step: int, ended_before: float) -> tuple[int, int]:
    connection = opened.connection
    connection.execute("BEGIN IMMEDIATE")
    try:
        bounds = {"after_step": after_step, "ended_before": ended_before}
        connection.execute(f"CREATE TEMP TABLE dropped AS {_DROPPED}", bounds)
        chosen = "episode_id IN (SELECT episode_id FROM dropped)"
        episodes = connection.execute(f"SELECT count(DISTINCT episode_id) FROM turns WHERE {chosen}").fetchone()[0]
        turns = connection.execute(f"DELETE FROM turns WHERE {chosen}").rowcount
        if turns:
            detail = {"episodes": episodes, "turns": turns}
            insert_event(connection, "ledger.compacted", detail)
            connection.execute(f"UPDATE episodes SET is_compacted = 1 WHERE {chosen}")
        connection.execute("DROP TABLE dropped")
        counted = opened.count()
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
    opened.control.note(*counted)
    return episodes, turns


def _size(path: Path) -> int:
    """Return the size of the ledger and of its write-ahead log, in bytes."""
    files = (path, log_of(path))
    return sum(file.stat().st_size for file in files if file.exists())
