"""The database file: its tables, its lock, and connections to it.

Place in the flow: opening.py opens a ledger with these, once it is known to be sound. Knows nothing of what the rows
mean.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import IO

from swarm.errors import LedgerError, LedgerInUse

SCHEMA_VERSION = 9
# Marks the file as a ledger in SQLite's header, so that another program's database is never written to.
APPLICATION_ID = 0x53574C47
# Another process reading with the sqlite3 shell may hold the file for moments.
BUSY_TIMEOUT_MS = 5000

ACKNOWLEDGED = "('completed', 'trained', 'dropped')"
"""The states, in SQL, of an episode whose result a client was told to be stored."""

_SCHEMA = """
CREATE TABLE jobs (
    job_id INTEGER PRIMARY KEY,
    job TEXT NOT NULL,
    resolved TEXT NOT NULL,
    created_at REAL NOT NULL
);

CREATE TABLE states (
    state_id INTEGER PRIMARY KEY,
    state TEXT NOT NULL,
    reason TEXT,
    at REAL NOT NULL
);

CREATE TABLE events (
    event_id INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,
    detail TEXT NOT NULL,
    at REAL NOT NULL
);

CREATE TABLE batches (
    batch_id TEXT PRIMARY KEY,
    job_id INTEGER NOT NULL REFERENCES jobs,
    step INTEGER NOT NULL,
    state TEXT NOT NULL,
    reason TEXT,
    sealed_at REAL NOT NULL,
    finished_at REAL,
    weight_version INTEGER,
    metrics TEXT NOT NULL DEFAULT '{}'
);
CREATE UNIQUE INDEX one_trained_batch_per_step ON batches (job_id, step) WHERE state = 'trained';

CREATE TABLE episodes (
    number INTEGER PRIMARY KEY,
    episode_id TEXT NOT NULL UNIQUE,
    job_id INTEGER NOT NULL REFERENCES jobs,
    episode_type TEXT NOT NULL,
    state TEXT NOT NULL,
    client_id TEXT NOT NULL,
    api_key_sha256 TEXT NOT NULL,
    begun_at REAL NOT NULL,
    idle_timeout_s REAL NOT NULL,
    deadline_at REAL NOT NULL,
    task_id TEXT,
    idempotency_key TEXT,
    payload_digest TEXT,
    reward REAL,
    is_success INTEGER,
    metadata TEXT NOT NULL DEFAULT '{}',
    outcome TEXT,
    last_seen_at REAL,
    ended_at REAL,
    batch_id TEXT REFERENCES batches,
    advantage REAL,
    turns INTEGER NOT NULL DEFAULT 0,
    weight_versions TEXT NOT NULL DEFAULT '[]',
    data_source TEXT NOT NULL DEFAULT 'default',
    lease_s REAL,
    turn_rewards TEXT,
    transaction_sha256 TEXT,
    inquiry_url TEXT
);
CREATE INDEX episodes_by_batch ON episodes (batch_id) WHERE batch_id IS NOT NULL;
CREATE INDEX episodes_by_task ON episodes (task_id) WHERE task_id IS NOT NULL;

CREATE TABLE turns (
    episode_id TEXT NOT NULL REFERENCES episodes (episode_id),
    turn_index INTEGER NOT NULL,
    prompt_ids BLOB NOT NULL,
    output_ids BLOB NOT NULL,
    logprobs BLOB NOT NULL,
    weight_versions BLOB NOT NULL,
    finish_reason TEXT NOT NULL,
    params TEXT NOT NULL,
    messages TEXT NOT NULL,
    reply TEXT NOT NULL,
    tools TEXT NOT NULL,
    parent INTEGER,
    fork_reason TEXT,
    started_at REAL NOT NULL,
    ended_at REAL NOT NULL,
    PRIMARY KEY (episode_id, turn_index)
);
"""

_ADDED_IN_VERSION_2 = """
CREATE INDEX episodes_by_state ON episodes (state);
CREATE INDEX episodes_by_client ON episodes (client_id);
CREATE UNIQUE INDEX one_decision_per_transaction ON episodes (transaction_sha256)
    WHERE transaction_sha256 IS NOT NULL AND inquiry_url IS NULL;

CREATE TABLE episode_counts (
    job_id INTEGER NOT NULL REFERENCES jobs,
    state TEXT NOT NULL,
    outcome TEXT NOT NULL,
    n INTEGER NOT NULL,
    PRIMARY KEY (job_id, state, outcome)
) WITHOUT ROWID;

CREATE TABLE trained_groups (
    job_id INTEGER NOT NULL REFERENCES jobs,
    data_source TEXT NOT NULL,
    n INTEGER NOT NULL,
    PRIMARY KEY (job_id, data_source)
) WITHOUT ROWID;

CREATE TABLE policies (
    policy_id INTEGER PRIMARY KEY,
    job_id INTEGER NOT NULL REFERENCES jobs,
    policy TEXT NOT NULL,
    at REAL NOT NULL
);

CREATE TABLE reward_revisions (
    revision_id INTEGER PRIMARY KEY,
    episode_id TEXT NOT NULL REFERENCES episodes (episode_id),
    reward REAL NOT NULL,
    is_success INTEGER,
    turn_rewards TEXT,
    reason TEXT NOT NULL,
    at REAL NOT NULL
);

CREATE TABLE audit (
    audit_id INTEGER PRIMARY KEY,
    at REAL NOT NULL,
    caller TEXT NOT NULL,
    address TEXT NOT NULL,
    method TEXT NOT NULL,
    path TEXT NOT NULL,
    status INTEGER NOT NULL,
    request_id TEXT NOT NULL
);
"""

_ADDED_IN_VERSION_3 = """
ALTER TABLE turns ADD COLUMN call_id TEXT NOT NULL DEFAULT '';
ALTER TABLE turns ADD COLUMN choice INTEGER NOT NULL DEFAULT 0;
ALTER TABLE turns ADD COLUMN request_sha256 TEXT NOT NULL DEFAULT '';
ALTER TABLE turns ADD COLUMN attempt INTEGER NOT NULL DEFAULT 0;
ALTER TABLE turns ADD COLUMN withheld TEXT;
"""

_ADDED_IN_VERSION_4 = """
ALTER TABLE episodes ADD COLUMN batch_group INTEGER;
"""

_ADDED_IN_VERSION_5 = """
CREATE TABLE launches (
    key TEXT PRIMARY KEY,
    job_id INTEGER NOT NULL REFERENCES jobs,
    at REAL NOT NULL
);

CREATE TABLE leases (
    fence INTEGER PRIMARY KEY AUTOINCREMENT,
    study_id TEXT NOT NULL,
    holder TEXT NOT NULL,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    database TEXT NOT NULL,
    ttl_s REAL NOT NULL,
    since REAL NOT NULL,
    ended_at REAL
);
"""

_ADDED_IN_VERSION_6 = """
CREATE TABLE job_changes (
    job_id INTEGER NOT NULL REFERENCES jobs,
    revision INTEGER NOT NULL,
    at_step INTEGER NOT NULL,
    settings TEXT NOT NULL,
    at REAL NOT NULL,
    PRIMARY KEY (job_id, revision)
);
ALTER TABLE batches ADD COLUMN settings TEXT NOT NULL DEFAULT '{}';
ALTER TABLE jobs ADD COLUMN origin_job_id INTEGER REFERENCES jobs;
ALTER TABLE jobs ADD COLUMN origin_step INTEGER;
INSERT INTO job_changes
    SELECT job_id, row_number() OVER (PARTITION BY job_id ORDER BY policy_id),
        1 + coalesce(
            (SELECT step FROM batches WHERE batches.job_id = policies.job_id AND sealed_at >= policies.at
                ORDER BY sealed_at LIMIT 1),
            (SELECT coalesce(max(step), 0) + 1 FROM batches
                WHERE batches.job_id = policies.job_id AND state = 'trained')),
        policy, at FROM policies;
DROP TABLE policies;
"""
# A policy held from the seal after it on, and has the names of the job's settings.

_ADDED_IN_VERSION_7 = """
ALTER TABLE episodes ADD COLUMN rewards TEXT;
ALTER TABLE reward_revisions ADD COLUMN rewards TEXT;
CREATE TABLE evaluations (
    evaluation_id INTEGER PRIMARY KEY,
    job_id INTEGER NOT NULL REFERENCES jobs,
    step INTEGER NOT NULL,
    weight_version INTEGER NOT NULL,
    state TEXT NOT NULL,
    episodes INTEGER NOT NULL,
    due_at REAL NOT NULL,
    evaluator TEXT,
    claimed_at REAL,
    ended_at REAL,
    reason TEXT,
    scored INTEGER,
    successes INTEGER,
    failures INTEGER,
    mean REAL,
    stderr REAL,
    payload_digest TEXT
);
CREATE UNIQUE INDEX one_evaluation_per_step ON evaluations (job_id, step) WHERE state <> 'rewound';
"""

_ADDED_IN_VERSION_8 = """
ALTER TABLE episodes ADD COLUMN is_greedy INTEGER NOT NULL DEFAULT 0;
"""

_ADDED_IN_VERSION_9 = f"""
ALTER TABLE episodes ADD COLUMN sampling_seed INTEGER;
ALTER TABLE episodes ADD COLUMN temperature REAL;
ALTER TABLE episodes ADD COLUMN max_calls INTEGER;
ALTER TABLE episodes ADD COLUMN max_tokens INTEGER;
ALTER TABLE episodes ADD COLUMN calls INTEGER NOT NULL DEFAULT 0;
ALTER TABLE episodes ADD COLUMN prompt_tokens INTEGER NOT NULL DEFAULT 0;
ALTER TABLE episodes ADD COLUMN sampled_tokens INTEGER NOT NULL DEFAULT 0;
ALTER TABLE episodes ADD COLUMN sampling TEXT NOT NULL DEFAULT '[]';
ALTER TABLE episodes ADD COLUMN is_limited INTEGER NOT NULL DEFAULT 0;
ALTER TABLE episodes ADD COLUMN system_failures INTEGER NOT NULL DEFAULT 0;
ALTER TABLE episodes ADD COLUMN model_share REAL;
UPDATE episodes SET calls = turns, (prompt_tokens, sampled_tokens) = (
    SELECT coalesce(sum(length(prompt_ids)) / 4, 0), coalesce(sum(length(output_ids)) / 4, 0) FROM turns
    WHERE turns.episode_id = episodes.episode_id);
CREATE TABLE marks (
    ledger_id TEXT NOT NULL,
    sequence INTEGER NOT NULL,
    acknowledged INTEGER NOT NULL
);
INSERT INTO marks SELECT lower(hex(randomblob(16))), 0, count(*) FROM episodes WHERE state IN {ACKNOWLEDGED};
ALTER TABLE turns ADD COLUMN checksum INTEGER;
ALTER TABLE episodes ADD COLUMN checksum INTEGER;
ALTER TABLE episodes ADD COLUMN is_compacted INTEGER NOT NULL DEFAULT 0;
UPDATE episodes SET is_compacted = 1 WHERE turns > 0 AND episode_id NOT IN (SELECT episode_id FROM turns);
"""
# Token ids have four bytes each. What earlier versions sampled with stands in the turns alone.
# `marks` has one row.

_FROM_VERSION_1 = f"""
ALTER TABLE episodes ADD COLUMN data_source TEXT NOT NULL DEFAULT 'default';
ALTER TABLE episodes ADD COLUMN lease_s REAL;
ALTER TABLE episodes ADD COLUMN turn_rewards TEXT;
ALTER TABLE episodes ADD COLUMN transaction_sha256 TEXT;
ALTER TABLE episodes ADD COLUMN inquiry_url TEXT;
DROP INDEX episodes_by_state;
{_ADDED_IN_VERSION_2}
INSERT INTO episode_counts
    SELECT job_id, state, coalesce(outcome, ''), count(*) FROM episodes
    WHERE state NOT IN ('running', 'completed') GROUP BY 1, 2, 3;
INSERT INTO trained_groups
    SELECT job_id, data_source, count(*) FROM
        (SELECT DISTINCT job_id, data_source, batch_id, task_id FROM episodes WHERE state = 'trained')
    GROUP BY 1, 2;
"""

_SINCE_VERSION_7 = f"{_ADDED_IN_VERSION_8} {_ADDED_IN_VERSION_9}"
_SINCE_VERSION_6 = f"{_ADDED_IN_VERSION_7} {_SINCE_VERSION_7}"
_SINCE_VERSION_5 = f"{_ADDED_IN_VERSION_6} {_SINCE_VERSION_6}"
_SINCE_VERSION_4 = f"{_ADDED_IN_VERSION_5} {_SINCE_VERSION_5}"
_SINCE_VERSION_3 = f"{_ADDED_IN_VERSION_4} {_SINCE_VERSION_4}"
_SINCE_VERSION_2 = f"{_ADDED_IN_VERSION_3} {_SINCE_VERSION_3}"

_CHANGES = {
    0: f"{_SCHEMA} {_ADDED_IN_VERSION_2} {_SINCE_VERSION_2}",
    1: f"{_FROM_VERSION_1} {_SINCE_VERSION_2}",
    2: _SINCE_VERSION_2,
    3: _SINCE_VERSION_3,
    4: _SINCE_VERSION_4,
    5: _SINCE_VERSION_5,
    6: _SINCE_VERSION_6,
    7: _SINCE_VERSION_7,
    8: _ADDED_IN_VERSION_9,
}
"""By the version that the file has, 0 for a new one."""


def open_for_reading(path: Path) -> sqlite3.Connection:
    """A connection that cannot write."""
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None, timeout=BUSY_TIMEOUT_MS / 1000
    )
    connection.row_factory = sqlite3.Row
    return connection


def open_unchanged(path: Path) -> sqlite3.Connection:
    """A connection that leaves no file behind where there is none: without a write-ahead log the file is complete."""
    log = log_of(path)
    mode = "mode=ro" if log.exists() and log.stat().st_size else "mode=ro&immutable=1"
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?{mode}", uri=True, isolation_level=None, timeout=BUSY_TIMEOUT_MS / 1000
    )


def log_of(path: Path) -> Path:
    """The write-ahead log of a ledger."""
    return path.with_name(f"{path.name}-wal")


def hold_lock(path: Path) -> IO[str]:
    """Lock `<path>.lock` for this process until the returned file is closed; the system frees it if the process dies.

    Raises LedgerInUse naming the process that holds it.
    """
    lock_path = path.with_name(f"{path.name}.lock")
    try:
        lock_path.parent.mkdir(parents=True, exist_ok=True)
        lock = lock_path.open("a+", encoding="ascii")
    except OSError as error:
        raise LedgerError(f"{lock_path} cannot be opened: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
    except BlockingIOError:
        lock.seek(0)
        holder = lock.read().strip() or "unknown"
        lock.close()
        raise LedgerInUse(
            f"{path} is in use by process {holder}: stop that server with `swarm stop`, or give this one another --home"
        ) from None
    except OSError as error:
        lock.close()
        raise LedgerError(f"{lock_path} cannot be locked: {error.strerror}") from error
    return lock


def connect_writer(path: Path) -> sqlite3.Connection:
    """Open a file that is known to be sound, in autocommit mode, with its tables created or migrated."""
    # Handed over to the writer thread, which alone uses it from then on.
    connection = sqlite3.connect(
        path, isolation_level=None, timeout=BUSY_TIMEOUT_MS / 1000, check_same_thread=False, cached_statements=256
    )
    try:
        connection.row_factory = sqlite3.Row
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        _bring_up_to_date(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _bring_up_to_date(connection: sqlite3.Connection, path: Path) -> None:
    """Create the tables, or migrate those of an older version in one transaction and keep a copy of it."""
    version = pragma(connection, "user_version")
    if version == SCHEMA_VERSION:
        return
    if version:
        _copy(connection, path.with_name(f"{path.name}.v{version}"))
    connection.executescript(
        f"BEGIN IMMEDIATE; {_CHANGES[version]} PRAGMA application_id = {APPLICATION_ID};"
        f" PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;"
    )


def _copy(connection: sqlite3.Connection, target: Path) -> None:
    """Under its name only once it is whole."""
    partial = target.with_name(f"{target.name}.partial")
    try:
        partial.unlink(missing_ok=True)
        with closing(sqlite3.connect(partial)) as copy:
            connection.backup(copy)
        partial.replace(target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def pragma(connection: sqlite3.Connection, name: str) -> int:
    """Return the number that a pragma has."""
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])
