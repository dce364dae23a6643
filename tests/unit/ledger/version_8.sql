BEGIN TRANSACTION;
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
    sealed_at REAL NOT NULL,
    finished_at REAL,
    weight_version INTEGER,
    metrics TEXT NOT NULL DEFAULT '{}'
, settings TEXT NOT NULL DEFAULT '{}');
INSERT INTO "batches" VALUES('b1',1,1,'trained',NULL,1.79524417345412707321e+09,1.7952441734637489319e+09,1,'{"loss":0.5}','{}');
CREATE TABLE episode_counts (
    job_id INTEGER NOT NULL REFERENCES jobs,
    state TEXT NOT NULL,
    outcome TEXT NOT NULL,
    n INTEGER NOT NULL,
    PRIMARY KEY (job_id, state, outcome)
) WITHOUT ROWID;
INSERT INTO "episode_counts" VALUES(1,'aborted','client_abort',1);
INSERT INTO "episode_counts" VALUES(1,'dropped','stale',1);
INSERT INTO "episode_counts" VALUES(1,'expired','idle_timeout',2);
INSERT INTO "episode_counts" VALUES(1,'trained','',2);
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
    weight_versions TEXT NOT NULL DEFAULT '[]'
, data_source TEXT NOT NULL DEFAULT 'default', lease_s REAL, turn_rewards TEXT, transaction_sha256 TEXT, inquiry_url TEXT, batch_group INTEGER, rewards TEXT, is_greedy INTEGER NOT NULL DEFAULT 0);
INSERT INTO "episodes" VALUES(1,'trained-1',1,'train','trained','laptop','0000000000000000000000000000000000000000000000000000000000000000',1.79524417340584945676e+09,240.0,1.79524597340584945678e+09,'task','key','digest',1.0,1,'{"note":"\u00e9"}',NULL,1.79524417341125345232e+09,1.79524417341125345232e+09,'b1',0.5,1,'[0]','default',NULL,NULL,NULL,NULL,NULL,NULL,0);
INSERT INTO "episodes" VALUES(2,'trained-2',1,'train','trained','laptop','0000000000000000000000000000000000000000000000000000000000000000',1.79524417341338682176e+09,240.0,1.79524597341338682174e+09,'task','key','digest',1.0,1,'{"note":"\u00e9"}',NULL,1.79524417341586613652e+09,1.79524417341586613652e+09,'b1',-0.5,1,'[0]','default',NULL,NULL,NULL,NULL,NULL,NULL,0);
INSERT INTO "episodes" VALUES(3,'dropped',1,'train','dropped','laptop','0000000000000000000000000000000000000000000000000000000000000000',1.79524417341680741309e+09,240.0,1.79524597341680741311e+09,'task','key','digest',1.0,1,'{"note":"\u00e9"}','stale',1.79524417342059278493e+09,1.79524417342059278493e+09,NULL,NULL,1,'[0]','default',NULL,NULL,NULL,NULL,NULL,NULL,0);
INSERT INTO "episodes" VALUES(4,'waiting',1,'train','completed','laptop','0000000000000000000000000000000000000000000000000000000000000000',1.79524417342126774784e+09,240.0,1.79524597342126774786e+09,'task','key','digest',1.0,1,'{"note":"\u00e9"}',NULL,1.79524417342240500449e+09,1.79524417342240500449e+09,NULL,NULL,1,'[0]','default',NULL,NULL,NULL,NULL,NULL,NULL,0);
INSERT INTO "episodes" VALUES(5,'aborted',1,'train','aborted','laptop','0000000000000000000000000000000000000000000000000000000000000000',1.79524417342312932015e+09,240.0,1.79524597342312932021e+09,NULL,NULL,NULL,NULL,NULL,'{}','client_abort',1.79524417342312932015e+09,3.0,NULL,NULL,0,'[]','default',NULL,NULL,NULL,NULL,NULL,NULL,0);
INSERT INTO "episodes" VALUES(6,'expired-1',1,'train','expired','laptop','0000000000000000000000000000000000000000000000000000000000000000',1.79524417342412686343e+09,240.0,1.79524597342412686349e+09,NULL,NULL,NULL,NULL,NULL,'{}','idle_timeout',1.79524417342412686343e+09,3.0,NULL,NULL,0,'[]','default',NULL,NULL,NULL,NULL,NULL,NULL,0);
INSERT INTO "episodes" VALUES(7,'expired-2',1,'train','expired','laptop','0000000000000000000000000000000000000000000000000000000000000000',1.79524417342539954183e+09,240.0,1.79524597342539954185e+09,NULL,NULL,NULL,NULL,NULL,'{}','idle_timeout',1.79524417342539954183e+09,3.0,NULL,NULL,0,'[]','default',NULL,NULL,NULL,NULL,NULL,NULL,0);
INSERT INTO "episodes" VALUES(8,'running',1,'train','running','laptop','0000000000000000000000000000000000000000000000000000000000000000',1.79524417342610883717e+09,240.0,1.79524597342610883711e+09,NULL,NULL,NULL,NULL,NULL,'{}',NULL,1.79524417342610883717e+09,NULL,NULL,NULL,1,'[0]','default',NULL,NULL,NULL,NULL,NULL,NULL,0);
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
CREATE TABLE events (
    event_id INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,
    detail TEXT NOT NULL,
    at REAL NOT NULL
);
CREATE TABLE job_changes (
    job_id INTEGER NOT NULL REFERENCES jobs,
    revision INTEGER NOT NULL,
    at_step INTEGER NOT NULL,
    settings TEXT NOT NULL,
    at REAL NOT NULL,
    PRIMARY KEY (job_id, revision)
);
INSERT INTO "job_changes" VALUES(1,1,2,'{"num_repeat":2}',1.7952441724541270733e+09);
INSERT INTO "job_changes" VALUES(1,2,3,'{"num_repeat":4,"batch_size":3}',1.79525417345412707324e+09);
CREATE TABLE jobs (
    job_id INTEGER PRIMARY KEY,
    job TEXT NOT NULL,
    resolved TEXT NOT NULL,
    created_at REAL NOT NULL
, origin_job_id INTEGER REFERENCES jobs, origin_step INTEGER);
INSERT INTO "jobs" VALUES(1,'{"lr":0.001}','{"lr":0.001,"batch_size":16}',1.79524417340295433997e+09,NULL,NULL);
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
CREATE TABLE reward_revisions (
    revision_id INTEGER PRIMARY KEY,
    episode_id TEXT NOT NULL REFERENCES episodes (episode_id),
    reward REAL NOT NULL,
    is_success INTEGER,
    turn_rewards TEXT,
    reason TEXT NOT NULL,
    at REAL NOT NULL
, rewards TEXT);
CREATE TABLE states (
    state_id INTEGER PRIMARY KEY,
    state TEXT NOT NULL,
    reason TEXT,
    at REAL NOT NULL
);
CREATE TABLE trained_groups (
    job_id INTEGER NOT NULL REFERENCES jobs,
    data_source TEXT NOT NULL,
    n INTEGER NOT NULL,
    PRIMARY KEY (job_id, data_source)
) WITHOUT ROWID;
INSERT INTO "trained_groups" VALUES(1,'default',1);
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
    ended_at REAL NOT NULL, call_id TEXT NOT NULL DEFAULT '', choice INTEGER NOT NULL DEFAULT 0, request_sha256 TEXT NOT NULL DEFAULT '', attempt INTEGER NOT NULL DEFAULT 0, withheld TEXT,
    PRIMARY KEY (episode_id, turn_index)
);
INSERT INTO "turns" VALUES('trained-1',0,X'010000000200000003000000',X'0400000005000000',X'9A9999999999B9BF00000000000004C0',X'0000000000000000','stop','{"max_tokens":8,"temperature":1.0,"top_p":1.0,"top_k":0,"seed":null,"stop":["end"],"stop_token_ids":[2]}','[{"role":"user","content":"hi"}]','{"role":"assistant","content":"ho"}','[]',NULL,'new_conversation',1.0,2.0,'',0,'',0,NULL);
INSERT INTO "turns" VALUES('trained-2',0,X'010000000200000003000000',X'0400000005000000',X'9A9999999999B9BF00000000000004C0',X'0000000000000000','stop','{"max_tokens":8,"temperature":1.0,"top_p":1.0,"top_k":0,"seed":null,"stop":["end"],"stop_token_ids":[2]}','[{"role":"user","content":"hi"}]','{"role":"assistant","content":"ho"}','[]',NULL,'new_conversation',1.0,2.0,'',0,'',0,NULL);
INSERT INTO "turns" VALUES('dropped',0,X'010000000200000003000000',X'0400000005000000',X'9A9999999999B9BF00000000000004C0',X'0000000000000000','stop','{"max_tokens":8,"temperature":1.0,"top_p":1.0,"top_k":0,"seed":null,"stop":["end"],"stop_token_ids":[2]}','[{"role":"user","content":"hi"}]','{"role":"assistant","content":"ho"}','[]',NULL,'new_conversation',1.0,2.0,'',0,'',0,NULL);
INSERT INTO "turns" VALUES('waiting',0,X'010000000200000003000000',X'0400000005000000',X'9A9999999999B9BF00000000000004C0',X'0000000000000000','stop','{"max_tokens":8,"temperature":1.0,"top_p":1.0,"top_k":0,"seed":null,"stop":["end"],"stop_token_ids":[2]}','[{"role":"user","content":"hi"}]','{"role":"assistant","content":"ho"}','[]',NULL,'new_conversation',1.0,2.0,'',0,'',0,NULL);
INSERT INTO "turns" VALUES('running',0,X'010000000200000003000000',X'0400000005000000',X'9A9999999999B9BF00000000000004C0',X'0000000000000000','stop','{"max_tokens":8,"temperature":1.0,"top_p":1.0,"top_k":0,"seed":null,"stop":["end"],"stop_token_ids":[2]}','[{"role":"user","content":"hi"}]','{"role":"assistant","content":"ho"}','[]',NULL,'new_conversation',1.0,2.0,'',0,'',0,NULL);
CREATE UNIQUE INDEX one_trained_batch_per_step ON batches (job_id, step) WHERE state = 'trained';
CREATE INDEX episodes_by_batch ON episodes (batch_id) WHERE batch_id IS NOT NULL;
CREATE INDEX episodes_by_task ON episodes (task_id) WHERE task_id IS NOT NULL;
CREATE INDEX episodes_by_state ON episodes (state);
CREATE INDEX episodes_by_client ON episodes (client_id);
CREATE UNIQUE INDEX one_decision_per_transaction ON episodes (transaction_sha256)
    WHERE transaction_sha256 IS NOT NULL AND inquiry_url IS NULL;
CREATE UNIQUE INDEX one_evaluation_per_step ON evaluations (job_id, step) WHERE state <> 'rewound';
DELETE FROM "sqlite_sequence";
COMMIT;
