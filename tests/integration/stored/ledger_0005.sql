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
INSERT INTO "audit" VALUES(1,1.79543457840449571611e+09,'commander','127.0.0.1','PATCH','/v1/swarm/batch/policy',200,'req-b7d8aa93f0c34393a4fa95d394e497ba');
INSERT INTO "audit" VALUES(2,1.7954345790381946564e+09,'commander','127.0.0.1','PATCH','/v1/swarm/batch/policy',200,'req-1fbae036271b48e68995242f3c31eb1c');
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
INSERT INTO "batches" VALUES('batch-bf0f275ec375',1,1,'trained',NULL,1.79543457889732766151e+09,1.79543457893247842792e+09,1,'{"critic/score/mean":0.5,"actor/pg_loss":0.0,"actor/grad_norm":0.5,"actor/entropy":1.0,"actor/ppo_kl":0.0,"actor/trained_tokens":45.0,"batch/episodes":4.0,"batch/groups":2.0,"batch/short_groups":0.0,"batch/missing_groups":0.0,"batch/dropped_episodes":0.0,"batch/dropped_tokens":0.0,"timing/drain_s":0.00019791299564531073}');
CREATE TABLE episode_counts (
    job_id INTEGER NOT NULL REFERENCES jobs,
    state TEXT NOT NULL,
    outcome TEXT NOT NULL,
    n INTEGER NOT NULL,
    PRIMARY KEY (job_id, state, outcome)
) WITHOUT ROWID;
INSERT INTO "episode_counts" VALUES(1,'trained','',4);
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
INSERT INTO "episodes" VALUES(1,'ep-a8dce5b46d5e4338ae4290eb6edd9442',1,'train','trained','anonymous','9bd02c6d88331aedb0c88cce24b2b1ca960d7cb25642a77366cc415543405a4a',1.79543457842579579357e+09,240.0,1.79603937842579579353e+09,'first-0','ep-a8dce5b46d5e4338ae4290eb6edd9442','66a015a6c6aa873bc8f4b31271c62ae252594a6c040541d30696c3e4e6c58c63',0.0,NULL,'{}',NULL,1.7954345785095472336e+09,1.7954345785095472336e+09,'batch-bf0f275ec375',-0.5,1,'[0]','default',NULL,NULL,NULL,NULL,0);
INSERT INTO "episodes" VALUES(2,'ep-1adaeff63c624bfd8f528750d11bed41',1,'train','trained','anonymous','7447f70446924e6e6876e48e8762d3d6e4507a565ca146cb65922e8b42b6ca25',1.79543457853366971018e+09,240.0,1.79603937853366971014e+09,'first-0','ep-1adaeff63c624bfd8f528750d11bed41','0b9c8202814c83a2e1ab09640fa83fbf69aec4764efd70610b32bbb7248f2c47',1.0,NULL,'{}',NULL,1.79543457858590269093e+09,1.79543457858590269093e+09,'batch-bf0f275ec375',0.5,1,'[0]','default',NULL,NULL,NULL,NULL,0);
INSERT INTO "episodes" VALUES(3,'ep-d15583e520d24dd68a372e8df5af777e',1,'train','trained','anonymous','76815c16fe77efa159cd72c697aed150825b74ae1e647ad2c9ec0024b1226115',1.79543457862597179413e+09,240.0,1.79603937862597179409e+09,'first-1','ep-d15583e520d24dd68a372e8df5af777e','4e6cdde625ca45048bccee4d701de2c383e6473d666e7c71c69ea933d3d1c3b5',0.0,NULL,'{}',NULL,1.79543457870258975025e+09,1.79543457870258975025e+09,'batch-bf0f275ec375',-0.5,1,'[0]','default',NULL,NULL,NULL,NULL,1);
INSERT INTO "episodes" VALUES(4,'ep-83a73524145e42a9abb54a412b4d1927',1,'train','trained','anonymous','d17158e2489fbc1b0ad0df6543b29eceadb97e20f231d354c274224bdd5679aa',1.79543457876351308824e+09,240.0,1.79603937876351308819e+09,'first-1','ep-83a73524145e42a9abb54a412b4d1927','e5c3e1e5a435035fc7037bfa152b7b6a0cefd0b9b3ef9def29621878ec8dde76',1.0,NULL,'{}',NULL,1.79543457883999180799e+09,1.79543457883999180799e+09,'batch-bf0f275ec375',0.5,1,'[0]','default',NULL,NULL,NULL,NULL,1);
INSERT INTO "episodes" VALUES(5,'ep-ec52ba794f07442698c51ec40c49e2ff',1,'train','completed','anonymous','22ecb5770db6606409c7e5520e27706dbe22aa86365331f778c5a430aba36de9',1.79543457904883909225e+09,240.0,1.79603937904883909221e+09,'second','ep-ec52ba794f07442698c51ec40c49e2ff','63d8d6307823959467ec2c63cf7d7f4f96d14140d6866c22c67b18291723d63d',0.0,NULL,'{}',NULL,1.79543457909002208711e+09,1.79543457909002208711e+09,NULL,NULL,1,'[1]','default',NULL,NULL,NULL,NULL,NULL);
CREATE TABLE events (
    event_id INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,
    detail TEXT NOT NULL,
    at REAL NOT NULL
);
INSERT INTO "events" VALUES(1,'job.started','{"job_id":1,"project_name":"swarm","experiment_name":"default"}',1.79543457195633459093e+09);
INSERT INTO "events" VALUES(2,'engine.state','{"state":"BOOTING","reason":null}',1.79543457196030330656e+09);
INSERT INTO "events" VALUES(3,'engine.state','{"state":"ROLLING","reason":null}',1.79543457839526343338e+09);
INSERT INTO "events" VALUES(4,'policy.changed','{"stop_rule":"enough_tasks","batch_size":1,"num_repeat":2,"min_group":2,"drain_timeout_s":1.0,"batch_timeout_s":null,"max_staleness":0,"mixture":null,"group_timeout_s":30.0,"stall_timeout_s":300.0}',1.79543457840156769748e+09);
INSERT INTO "events" VALUES(5,'engine.state','{"state":"DRAINING","reason":null}',1.79543457886249423031e+09);
INSERT INTO "events" VALUES(6,'batch.sealed','{"batch_id":"batch-bf0f275ec375","step":1,"episodes":4,"dropped":{}}',1.79543457889732766151e+09);
INSERT INTO "events" VALUES(7,'engine.state','{"state":"TRAINING","reason":null}',1.79543457891786694532e+09);
INSERT INTO "events" VALUES(8,'batch.trained','{"batch_id":"batch-bf0f275ec375","step":1,"weight_version":1,"score":0.5}',1.79543457893247842792e+09);
INSERT INTO "events" VALUES(9,'engine.state','{"state":"EXPORTING","reason":null}',1.79543457896855258946e+09);
INSERT INTO "events" VALUES(10,'checkpoint.saved','{"step":1,"path":"/data/swarm/default/run-0001/recovery/step-000001","kept":false,"seconds":0.0006048760042176582}',1.79543457899237561222e+09);
INSERT INTO "events" VALUES(11,'engine.state','{"state":"ROLLING","reason":null}',1.79543457900447940827e+09);
INSERT INTO "events" VALUES(12,'policy.changed','{"stop_rule":"enough_tasks","batch_size":1,"num_repeat":3,"min_group":2,"drain_timeout_s":1.0,"batch_timeout_s":null,"max_staleness":0,"mixture":null,"group_timeout_s":30.0,"stall_timeout_s":300.0}',1.79543457901691579821e+09);
CREATE TABLE jobs (
    job_id INTEGER PRIMARY KEY,
    job TEXT NOT NULL,
    resolved TEXT NOT NULL,
    created_at REAL NOT NULL
);
INSERT INTO "jobs" VALUES(1,'{"engine":"fake","batch_size":2,"num_repeat":2,"drain_timeout_s":1.0,"episode_timeout_s":604800.0}','{"algorithm":"grpo","project_name":"swarm","experiment_name":"default","engine":"fake","model":"nano","n_gpu":0,"seed":0,"batch_size":2,"num_repeat":2,"stop_rule":"enough_tasks","min_group":2,"drain_timeout_s":1.0,"batch_timeout_s":null,"group_timeout_s":30.0,"stall_timeout_s":300.0,"max_staleness":0,"mixture":null,"episode_timeout_s":604800.0,"total_steps":null,"save_freq":0,"lr":0.003,"lr_warmup_steps":0,"weight_decay":0.0,"betas":[0.9,0.95],"grad_clip":1.0,"ppo_epochs":1,"mini_batch_num":1,"ppo_max_token_len":16384,"norm_adv_by_std_in_grpo":true,"gamma":1.0,"policy_loss":"vanilla","clip_ratio":0.2,"clip_ratio_low":0.2,"clip_ratio_high":0.2,"clip_ratio_c":3.0,"loss_agg_mode":"token-mean","loss_scale_factor":null,"entropy_coeff":0.0,"rollout_is":"off","rollout_is_threshold":2.0,"use_kl_loss":false,"kl_loss_coef":0.001,"kl_loss_type":"low_var_kl","temperature":1.0,"max_response_length":256,"max_model_len":null,"tool_parser":"auto","reasoning_parser":"auto","verl":{}}',1.79543457195633459093e+09);
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
CREATE TABLE policies (
    policy_id INTEGER PRIMARY KEY,
    job_id INTEGER NOT NULL REFERENCES jobs,
    policy TEXT NOT NULL,
    at REAL NOT NULL
);
INSERT INTO "policies" VALUES(1,1,'{"stop_rule":"enough_tasks","batch_size":1,"num_repeat":2,"min_group":2,"drain_timeout_s":1.0,"batch_timeout_s":null,"max_staleness":0,"mixture":null,"group_timeout_s":30.0,"stall_timeout_s":300.0}',1.79543457840156769748e+09);
INSERT INTO "policies" VALUES(2,1,'{"stop_rule":"enough_tasks","batch_size":1,"num_repeat":3,"min_group":2,"drain_timeout_s":1.0,"batch_timeout_s":null,"max_staleness":0,"mixture":null,"group_timeout_s":30.0,"stall_timeout_s":300.0}',1.79543457901691579821e+09);
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
INSERT INTO "states" VALUES(1,'BOOTING',NULL,1.79543457196030330656e+09);
INSERT INTO "states" VALUES(2,'ROLLING',NULL,1.79543457839526343338e+09);
INSERT INTO "states" VALUES(3,'DRAINING',NULL,1.79543457886249423031e+09);
INSERT INTO "states" VALUES(4,'TRAINING',NULL,1.79543457891786694532e+09);
INSERT INTO "states" VALUES(5,'EXPORTING',NULL,1.79543457896855258946e+09);
INSERT INTO "states" VALUES(6,'ROLLING',NULL,1.79543457900447940827e+09);
CREATE TABLE trained_groups (
    job_id INTEGER NOT NULL REFERENCES jobs,
    data_source TEXT NOT NULL,
    n INTEGER NOT NULL,
    PRIMARY KEY (job_id, data_source)
) WITHOUT ROWID;
INSERT INTO "trained_groups" VALUES(1,'default',2);
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
INSERT INTO "turns" VALUES('ep-a8dce5b46d5e4338ae4290eb6edd9442',0,X'010000000A010000C900000035000000510000004E0000005800000047000000DF000000480000004B000000540000002E0100000F0000001200000002000000C9000000010000000D010000C9000000',X'30000000720100001B0100002D0100004301000039010000380000005300000035000000230100004D010000090100005C000000330000003B0000000901000002000000',X'5AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C0',X'0000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000','stop','{"max_tokens":256,"stop_token_ids":[2]}','[{"role":"user","content":"Solve first-0"}]','{"role":"assistant","content":"NstemctrolowguVqSoremtanzQYtan"}','[]',NULL,'new_conversation',1.79543457844388961788e+09,1.7954345784697873593e+09,'b2552f09f7d64ca8922890fa179fc335',0,'9cdb901b787e74676797c8446b1678bd948b1028e300a67b30475cab05d143eb',0,NULL);
INSERT INTO "turns" VALUES('ep-1adaeff63c624bfd8f528750d11bed41',0,X'010000000A010000C900000035000000510000004E0000005800000047000000DF000000480000004B000000540000002E0100000F0000001200000002000000C9000000010000000D010000C9000000',X'370100001B0100001D0100004E0100002F0000005A010000330000003B0000002A01000002000000',X'5AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C0',X'00000000000000000000000000000000000000000000000000000000000000000000000000000000','stop','{"max_tokens":256,"stop_token_ids":[2]}','[{"role":"user","content":"Solve first-0"}]','{"role":"assistant","content":"cuctunesMproQYRe"}','[]',NULL,'new_conversation',1.79543457856503939633e+09,1.79543457857652378082e+09,'d1cd7fb4c1514bfcb79dbed66f3c27c6',0,'9cdb901b787e74676797c8446b1678bd948b1028e300a67b30475cab05d143eb',0,NULL);
INSERT INTO "turns" VALUES('ep-d15583e520d24dd68a372e8df5af777e',0,X'010000000A010000C900000035000000510000004E0000005800000047000000DF000000480000004B000000540000002E0100000F0000001300000002000000C9000000010000000D010000C9000000',X'42010000590100005401000046010000480100000601000022010000480000003901000002000000',X'5AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C0',X'00000000000000000000000000000000000000000000000000000000000000000000000000000000','stop','{"max_tokens":256,"stop_token_ids":[2]}','[{"role":"user","content":"Solve first-1"}]','{"role":"assistant","content":"higherperlsHowSoranexfgu"}','[]',NULL,'new_conversation',1.79543457865325570103e+09,1.79543457865389466292e+09,'4b56acc2ba7c41ec94ef44c80b812120',0,'bfb0bccffe47bba5b28bb884a6551eaa2c15b69ec194e40925e2d7b138915044',0,NULL);
INSERT INTO "turns" VALUES('ep-83a73524145e42a9abb54a412b4d1927',0,X'010000000A010000C900000035000000510000004E0000005800000047000000DF000000480000004B000000540000002E0100000F0000001300000002000000C9000000010000000D010000C9000000',X'320100002E0000005B010000300100001B010000030100002101000002000000',X'5AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C05AF2DB3625FD13C0',X'0000000000000000000000000000000000000000000000000000000000000000','stop','{"max_tokens":256,"stop_token_ids":[2]}','[{"role":"user","content":"Solve first-1"}]','{"role":"assistant","content":"AddLparerscterame"}','[]',NULL,'new_conversation',1.79543457879089498521e+09,1.79543457879147124291e+09,'0352ecb8b0fe4ec18c24c80bd40933d6',0,'bfb0bccffe47bba5b28bb884a6551eaa2c15b69ec194e40925e2d7b138915044',0,NULL);
INSERT INTO "turns" VALUES('ep-ec52ba794f07442698c51ec40c49e2ff',0,X'010000000A010000C900000035000000510000004E0000005800000047000000DF00000055000000470000004500000051000000500000004600000002000000C9000000010000000D010000C9000000',X'6001000002000000',X'5AF2DB3625FD13C05AF2DB3625FD13C0',X'0100000001000000','stop','{"max_tokens":256,"stop_token_ids":[2]}','[{"role":"user","content":"Solve second"}]','{"role":"assistant","content":"ters"}','[]',NULL,'new_conversation',1.79543457906530094141e+09,1.79543457906569027893e+09,'d9f875a121af43c2bd469a719114fc57',0,'388c4f8736a9c07896d6139f61f868c75b8ad447e8d940edeae90d725537116c',0,NULL);
CREATE UNIQUE INDEX one_trained_batch_per_step ON batches (job_id, step) WHERE state = 'trained';
CREATE INDEX episodes_by_batch ON episodes (batch_id) WHERE batch_id IS NOT NULL;
CREATE INDEX episodes_by_task ON episodes (task_id) WHERE task_id IS NOT NULL;
CREATE INDEX episodes_by_state ON episodes (state);
CREATE INDEX episodes_by_client ON episodes (client_id);
CREATE UNIQUE INDEX one_decision_per_transaction ON episodes (transaction_sha256)
    WHERE transaction_sha256 IS NOT NULL AND inquiry_url IS NULL;
DELETE FROM "sqlite_sequence";
COMMIT;
PRAGMA user_version = 5;
PRAGMA application_id = 1398230087;
