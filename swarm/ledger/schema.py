"""The tables of a ledger, and the mark that tells a ledger from other files."""

SCHEMA_VERSION = 1
APPLICATION_ID = 0x53574C47
"""The number in SQLite's header that marks the file as a ledger, so that no other program's database is written to."""

ACKNOWLEDGED = "('completed', 'trained', 'dropped')"
"""The states, in SQL, of an episode whose stored result was acknowledged to its client."""

SCHEMA = """
CREATE TABLE jobs (
    job_id INTEGER PRIMARY KEY,
    job TEXT NOT NULL,
    resolved TEXT NOT NULL,
    created_at REAL NOT NULL,
    origin_job_id INTEGER REFERENCES jobs,
    origin_step INTEGER,
    initial_step INTEGER NOT NULL
);

CREATE TABLE job_changes (
    job_id INTEGER NOT NULL REFERENCES jobs,
    revision INTEGER NOT NULL,
    at_step INTEGER NOT NULL,
    settings TEXT NOT NULL,
    at REAL NOT NULL,
    PRIMARY KEY (job_id, revision)
);

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

CREATE TABLE batches (
    batch_id TEXT PRIMARY KEY,
    job_id INTEGER NOT NULL REFERENCES jobs,
    step INTEGER NOT NULL,
    state TEXT NOT NULL,
    reason TEXT,
    closed_at REAL NOT NULL,
    finished_at REAL,
    weight_version INTEGER,
    metrics TEXT NOT NULL DEFAULT '{}',
    settings TEXT NOT NULL
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
    lease_s REAL,
    data_source TEXT NOT NULL,
    is_greedy INTEGER NOT NULL,
    sampling_seed INTEGER,
    temperature REAL,
    max_calls INTEGER,
    max_tokens INTEGER,
    task_id TEXT,
    idempotency_key TEXT,
    payload_digest TEXT,
    reward REAL,
    is_success INTEGER,
    metadata TEXT NOT NULL,
    turn_rewards TEXT,
    rewards TEXT,
    checksum INTEGER NOT NULL,
    outcome TEXT,
    last_seen_at REAL,
    ended_at REAL,
    transaction_sha256 TEXT,
    inquiry_url TEXT,
    batch_id TEXT REFERENCES batches,
    batch_group INTEGER,
    advantage REAL,
    turns INTEGER NOT NULL DEFAULT 0,
    weight_versions TEXT NOT NULL DEFAULT '[]',
    is_compacted INTEGER NOT NULL DEFAULT 0,
    calls INTEGER NOT NULL DEFAULT 0,
    prompt_tokens INTEGER NOT NULL DEFAULT 0,
    sampled_tokens INTEGER NOT NULL DEFAULT 0,
    sampling TEXT NOT NULL DEFAULT '[]',
    is_limited INTEGER NOT NULL DEFAULT 0,
    system_failures INTEGER NOT NULL DEFAULT 0,
    model_share REAL
);
CREATE INDEX episodes_by_state ON episodes (state);
CREATE INDEX episodes_by_client ON episodes (client_id);
CREATE INDEX episodes_by_batch ON episodes (batch_id) WHERE batch_id IS NOT NULL;
CREATE INDEX episodes_by_task ON episodes (task_id) WHERE task_id IS NOT NULL;
CREATE UNIQUE INDEX one_decision_per_transaction ON episodes (transaction_sha256)
    WHERE transaction_sha256 IS NOT NULL AND inquiry_url IS NULL;

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
    call_id TEXT NOT NULL,
    choice INTEGER NOT NULL,
    request_sha256 TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    withheld TEXT,
    checksum INTEGER NOT NULL,
    PRIMARY KEY (episode_id, turn_index)
);

CREATE TABLE reward_revisions (
    revision_id INTEGER PRIMARY KEY,
    episode_id TEXT NOT NULL REFERENCES episodes (episode_id),
    reward REAL NOT NULL,
    is_success INTEGER,
    turn_rewards TEXT,
    rewards TEXT,
    reason TEXT NOT NULL,
    at REAL NOT NULL
);

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

CREATE TABLE marks (
    ledger_id TEXT NOT NULL,
    sequence INTEGER NOT NULL,
    acknowledged INTEGER NOT NULL
);
INSERT INTO marks VALUES (lower(hex(randomblob(16))), 0, 0);
"""
"""The tables and indexes in SQL. `marks` has one row."""
