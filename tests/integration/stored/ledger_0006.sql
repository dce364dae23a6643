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
INSERT INTO "audit" VALUES(1,1.79544373498765969278e+09,'commander','127.0.0.1','PUT','/v1/swarm/job',200,'req-2872afe6d56c429ca7a09517c5c78e56');
INSERT INTO "audit" VALUES(2,1.79544373503226590161e+09,'commander','127.0.0.1','POST','/v1/swarm/engine/start',202,'req-5e6e0a8bfa5140febc26040a1e9651c1');
INSERT INTO "audit" VALUES(3,1.79544373924586939811e+09,'commander','127.0.0.1','PATCH','/v1/swarm/job',200,'req-4dd77918b9e5407e84eb8642da21c49f');
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
INSERT INTO "batches" VALUES('batch-99c1a9e26c12',1,1,'trained',NULL,1.7954437391185827255e+09,1.79544373913417530056e+09,1,'{"critic/score/mean":0.5,"actor/pg_loss":0.0,"actor/grad_norm":0.5,"actor/entropy":1.0,"actor/ppo_kl":0.0,"actor/trained_tokens":27.0,"batch/episodes":2.0,"batch/groups":1.0,"batch/short_groups":0.0,"batch/missing_groups":0.0,"batch/dropped_episodes":0.0,"batch/dropped_tokens":0.0,"timing/drain_s":0.000117784999019932}','{}');
CREATE TABLE episode_counts (
    job_id INTEGER NOT NULL REFERENCES jobs,
    state TEXT NOT NULL,
    outcome TEXT NOT NULL,
    n INTEGER NOT NULL,
    PRIMARY KEY (job_id, state, outcome)
) WITHOUT ROWID;
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
    weight_versions TEXT NOT NULL DEFAULT '[]',
    data_source TEXT NOT NULL DEFAULT 'default',
    lease_s REAL,
    turn_rewards TEXT,
    transaction_sha256 TEXT,
    inquiry_url TEXT
, batch_group INTEGER);
INSERT INTO "episodes" VALUES(1,'ep-d94da595a6154b5c8b149dc619891b55',1,'train','trained','anonymous','c5c94b3437b1b018f7b329a405d963a1eadd06e6d29f1b9a7cebbd10aa51a107',1.79544373901646542551e+09,240.0,1.79544553901646542545e+09,'first-0','ep-d94da595a6154b5c8b149dc619891b55','66a015a6c6aa873bc8f4b31271c62ae252594a6c040541d30696c3e4e6c58c63',0.0,NULL,'{}',NULL,1795443739.0663,1795443739.0663,'batch-99c1a9e26c12',-0.5,1,'[0]','default',NULL,NULL,NULL,NULL,0);
INSERT INTO "episodes" VALUES(2,'ep-de81bc4c1dfa41da93d28215ccee629e',1,'train','trained','anonymous','a9cb9270e94aa672e0eac84c1d95307d132e1580899a85365ceec5905de94de6',1.79544373907106447215e+09,240.0,1.79544553907106447217e+09,'first-0','ep-de81bc4c1dfa41da93d28215ccee629e','0b9c8202814c83a2e1ab09640fa83fbf69aec4764efd70610b32bbb7248f2c47',1.0,NULL,'{}',NULL,1.7954437391064314842e+09,1.7954437391064314842e+09,'batch-99c1a9e26c12',0.5,1,'[0]','default',NULL,NULL,NULL,NULL,0);
INSERT INTO "episodes" VALUES(3,'ep-670b8b31c3d04f3bb6d9426af383ba5a',1,'train','completed','anonymous','312d913bf216272b89e647039ad1af4f9fcda2058aa672d113973c61aa3c6733',1.79544373925328350064e+09,240.0,1.79544553925328350067e+09,'second','ep-670b8b31c3d04f3bb6d9426af383ba5a','74b59b7da75dcbf64bfc9012f88496a38c05e177b09b42b2faf7122a2237cebb',1.0,NULL,'{}',NULL,1.79544373929008936876e+09,1.79544373929008936876e+09,NULL,NULL,1,'[1]','default',NULL,NULL,NULL,NULL,NULL);
CREATE TABLE events (
    event_id INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,
    detail TEXT NOT NULL,
    at REAL NOT NULL
);
INSERT INTO "events" VALUES(1,'job.started','{"job_id":1,"project_name":"swarm","experiment_name":"default"}',1.79544373501437854769e+09);
INSERT INTO "events" VALUES(2,'engine.state','{"state":"BOOTING","reason":null}',1.79544373502804636955e+09);
INSERT INTO "events" VALUES(3,'engine.state','{"state":"ROLLING","reason":null}',1.79544373879337859157e+09);
INSERT INTO "events" VALUES(4,'engine.state','{"state":"DRAINING","reason":null}',1.79544373911272144321e+09);
INSERT INTO "events" VALUES(5,'batch.sealed','{"batch_id":"batch-99c1a9e26c12","step":1,"episodes":2,"dropped":{}}',1.7954437391185827255e+09);
INSERT INTO "events" VALUES(6,'engine.state','{"state":"TRAINING","reason":null}',1.79544373912824296955e+09);
INSERT INTO "events" VALUES(7,'batch.trained','{"batch_id":"batch-99c1a9e26c12","step":1,"weight_version":1,"score":0.5}',1.79544373913417530056e+09);
INSERT INTO "events" VALUES(8,'engine.state','{"state":"EXPORTING","reason":null}',1.79544373914036321641e+09);
INSERT INTO "events" VALUES(9,'checkpoint.saved','{"step":1,"path":"runs/swarm/swarm/default/run-0001/recovery/step-000001","kept":false,"seconds":0.0008339260020875372}',1.79544373916874909404e+09);
INSERT INTO "events" VALUES(10,'engine.state','{"state":"ROLLING","reason":null}',1.79544373917701697348e+09);
INSERT INTO "events" VALUES(11,'job.changed','{"job_id":1,"revision":1,"at_step":2,"settings":{"lr":0.0001}}',1.79544373922984027867e+09);
CREATE TABLE job_changes (
    job_id INTEGER NOT NULL REFERENCES jobs,
    revision INTEGER NOT NULL,
    at_step INTEGER NOT NULL,
    settings TEXT NOT NULL,
    at REAL NOT NULL,
    PRIMARY KEY (job_id, revision)
);
INSERT INTO "job_changes" VALUES(1,1,2,'{"lr":0.0001}',1.79544373922984027867e+09);
CREATE TABLE jobs (
    job_id INTEGER PRIMARY KEY,
    job TEXT NOT NULL,
    resolved TEXT NOT NULL,
    created_at REAL NOT NULL
, origin_job_id INTEGER REFERENCES jobs, origin_step INTEGER);
INSERT INTO "jobs" VALUES(1,'{"engine":"fake","batch_size":1,"num_repeat":2,"drain_timeout_s":1.0,"group_timeout_s":600.0,"stall_timeout_s":600.0,"total_steps":4}','{"algorithm":"grpo","project_name":"swarm","experiment_name":"default","engine":"fake","model":"nano","n_gpu":0,"seed":0,"batch_size":1,"num_repeat":2,"stop_rule":"enough_tasks","min_group":2,"drain_timeout_s":1.0,"batch_timeout_s":null,"group_timeout_s":600.0,"stall_timeout_s":600.0,"max_staleness":0,"mixture":null,"episode_timeout_s":1800.0,"total_steps":4,"save_freq":0,"keep_last":null,"keep_best":0,"keep_best_metric":"critic/score/mean","lr":0.003,"lr_warmup_steps":0,"lr_scheduler_type":"constant","min_lr_ratio":0.0,"weight_decay":0.0,"betas":[0.9,0.95],"grad_clip":1.0,"ppo_epochs":1,"mini_batch_num":1,"ppo_max_token_len":16384,"enable_gradient_checkpointing":null,"lora_rank":0,"lora_alpha":16,"lora_target_modules":"all-linear","norm_adv_by_std_in_grpo":true,"gamma":1.0,"policy_loss":"vanilla","clip_ratio":0.2,"clip_ratio_low":0.2,"clip_ratio_high":0.2,"clip_ratio_c":3.0,"loss_agg_mode":"token-mean","loss_scale_factor":null,"entropy_coeff":0.0,"rollout_is":"off","rollout_is_threshold":2.0,"use_kl_loss":false,"kl_loss_coef":0.001,"kl_loss_type":"low_var_kl","temperature":1.0,"max_response_length":256,"max_model_len":null,"tool_parser":"auto","reasoning_parser":"auto","verl":{}}',1.79544373501437854769e+09,NULL,NULL);
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
);
CREATE TABLE states (
    state_id INTEGER PRIMARY KEY,
    state TEXT NOT NULL,
    reason TEXT,
    at REAL NOT NULL
);
INSERT INTO "states" VALUES(1,'BOOTING',NULL,1.79544373502804636955e+09);
INSERT INTO "states" VALUES(2,'ROLLING',NULL,1.79544373879337859157e+09);
INSERT INTO "states" VALUES(3,'DRAINING',NULL,1.79544373911272144321e+09);
INSERT INTO "states" VALUES(4,'TRAINING',NULL,1.79544373912824296955e+09);
INSERT INTO "states" VALUES(5,'EXPORTING',NULL,1.79544373914036321641e+09);
INSERT INTO "states" VALUES(6,'ROLLING',NULL,1.79544373917701697348e+09);
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
INSERT INTO "turns" VALUES('ep-d94da595a6154b5c8b149dc619891b55',0,X'010000000A010000C900000035000000510000004E0000005800000047000000DF000000480000004B000000540000002E0100000F0000001200000002000000C9000000010000000D010000C9000000',X'30000000720100001B0100002D0100004301000039010000380000005300000035000000230100004D010000090100005C000000330000003B0000000901000002000000',X'5AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C0',X'0000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000','stop','{"max_tokens":256,"stop_token_ids":[2]}','[{"role":"user","content":"Solve first-0"}]','{"role":"assistant","content":"NstemctrolowguVqSoremtanzQYtan"}','[]',NULL,'new_conversation',1.79544373903564834595e+09,1.79544373903758764264e+09,'7657476222f6434b98108a527f6459b5',0,'9cdb901b787e74676797c8446b1678bd948b1028e300a67b30475cab05d143eb',0,NULL);
INSERT INTO "turns" VALUES('ep-de81bc4c1dfa41da93d28215ccee629e',0,X'010000000A010000C900000035000000510000004E0000005800000047000000DF000000480000004B000000540000002E0100000F0000001200000002000000C9000000010000000D010000C9000000',X'370100001B0100001D0100004E0100002F0000005A010000330000003B0000002A01000002000000',X'5AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C0',X'00000000000000000000000000000000000000000000000000000000000000000000000000000000','stop','{"max_tokens":256,"stop_token_ids":[2]}','[{"role":"user","content":"Solve first-0"}]','{"role":"assistant","content":"cuctunesMproQYRe"}','[]',NULL,'new_conversation',1.79544373908083248134e+09,1.79544373908133482933e+09,'6ae9dd2050364179a3fa7f9eabe921d2',0,'9cdb901b787e74676797c8446b1678bd948b1028e300a67b30475cab05d143eb',0,NULL);
INSERT INTO "turns" VALUES('ep-670b8b31c3d04f3bb6d9426af383ba5a',0,X'010000000A010000C900000035000000510000004E0000005800000047000000DF00000055000000470000004500000051000000500000004600000002000000C9000000010000000D010000C9000000',X'4A0000003701000058010000280100002C010000070100004F010000530100005800000008010000520000003C0000005400000002000000',X'5AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C0',X'0100000001000000010000000100000001000000010000000100000001000000010000000100000001000000010000000100000001000000','stop','{"max_tokens":256,"stop_token_ids":[2]}','[{"role":"user","content":"Solve second"}]','{"role":"assistant","content":"hcuolsowinassessiesvserpZr"}','[]',NULL,'new_conversation',1.79544373927074623112e+09,1.79544373927373147013e+09,'213fb1693dd146b384ca6655d88f78ae',0,'388c4f8736a9c07896d6139f61f868c75b8ad447e8d940edeae90d725537116c',0,NULL);
CREATE UNIQUE INDEX one_trained_batch_per_step ON batches (job_id, step) WHERE state = 'trained';
CREATE INDEX episodes_by_batch ON episodes (batch_id) WHERE batch_id IS NOT NULL;
CREATE INDEX episodes_by_task ON episodes (task_id) WHERE task_id IS NOT NULL;
CREATE INDEX episodes_by_state ON episodes (state);
CREATE INDEX episodes_by_client ON episodes (client_id);
CREATE UNIQUE INDEX one_decision_per_transaction ON episodes (transaction_sha256)
    WHERE transaction_sha256 IS NOT NULL AND inquiry_url IS NULL;
DELETE FROM "sqlite_sequence";
COMMIT;
PRAGMA user_version = 6;
PRAGMA application_id = 1398230087;
