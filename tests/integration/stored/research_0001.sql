BEGIN TRANSACTION;
CREATE TABLE artifacts (
	id VARCHAR(32) NOT NULL, 
	study_id VARCHAR(32) NOT NULL, 
	run_id VARCHAR(32), 
	kind TEXT NOT NULL, 
	path TEXT NOT NULL, 
	sha256 VARCHAR(64) NOT NULL, 
	size_bytes INTEGER NOT NULL, 
	created_at FLOAT NOT NULL, 
	CONSTRAINT pk_artifacts PRIMARY KEY (id), 
	CONSTRAINT fk_artifacts_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (id), 
	CONSTRAINT fk_artifacts_study_id_studies FOREIGN KEY(study_id) REFERENCES studies (id), 
	CONSTRAINT uq_artifacts_study_id_path UNIQUE (study_id, path)
);
INSERT INTO "artifacts" VALUES('ar-1m81x5hcq3jek','st-1m81x5ekht535',NULL,'client.trusted','/srv/research/studies/st-1m81x5ekht535/arms/ex-1m81x5hbag63z/client.py','f45d56a15b54c5f5dd9b5afef0e6fa89b71306acec31c55e843fe3fcbde7eb83',2124,1.7953604745194129944e+09);
INSERT INTO "artifacts" VALUES('ar-1m81x5hdk15x3','st-1m81x5ekht535',NULL,'client.trusted','/srv/research/studies/st-1m81x5ekht535/arms/ex-1m81x5hbk766j/client.py','f45d56a15b54c5f5dd9b5afef0e6fa89b71306acec31c55e843fe3fcbde7eb83',2124,1.79536047454798889161e+09);
INSERT INTO "artifacts" VALUES('ar-1m81x5w2bxnt6','st-1m81x5ekht535','run-1m81x5nxs92pm','client','/srv/research/studies/st-1m81x5ekht535/runs/run-1m81x5nxs92pm/client.py','f45d56a15b54c5f5dd9b5afef0e6fa89b71306acec31c55e843fe3fcbde7eb83',2124,1.79536048545143222805e+09);
INSERT INTO "artifacts" VALUES('ar-1m81x5w2k448k','st-1m81x5ekht535','run-1m81x5nxs92pm','job','/srv/research/studies/st-1m81x5ekht535/runs/run-1m81x5nxs92pm/job.yaml','b7eb914727e903e5ffc013e20c50f0a7a515f6cbf88ba402ea5098c281e33d61',237,1.7953604854591219425e+09);
INSERT INTO "artifacts" VALUES('ar-1m81x5w2pqbth','st-1m81x5ekht535','run-1m81x5nxs92pm','log','/srv/research/studies/st-1m81x5ekht535/runs/run-1m81x5nxs92pm/client.log','53b3f78d4570f4b62094cc76738cfc4d6f241dfb68f05d14f440ccfd9f2e91e5',78,1.79536048546292734151e+09);
CREATE TABLE budget_entries (
	id INTEGER NOT NULL, 
	study_id VARCHAR(32) NOT NULL, 
	kind VARCHAR(32) NOT NULL, 
	"key" TEXT NOT NULL, 
	amount FLOAT NOT NULL, 
	run_id VARCHAR(32), 
	created_at FLOAT NOT NULL, 
	CONSTRAINT pk_budget_entries PRIMARY KEY (id), 
	CONSTRAINT fk_budget_entries_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (id), 
	CONSTRAINT fk_budget_entries_study_id_studies FOREIGN KEY(study_id) REFERENCES studies (id), 
	CONSTRAINT uq_budget_entries_study_id_kind_key UNIQUE (study_id, kind, "key")
);
INSERT INTO "budget_entries" VALUES(1,'st-1m81x5ekht535','wall_clock_s','session:ad15088232974e4db9d7aa594466e605',1.37951916560050449336e+01,NULL,1.79536047674283146856e+09);
INSERT INTO "budget_entries" VALUES(2,'st-1m81x5ekht535','runs','no-kl/0',1.0,'run-1m81x5nxs92pm',1.79536047919087123872e+09);
INSERT INTO "budget_entries" VALUES(3,'st-1m81x5ekht535','working_s','run-1m81x5nxs92pm',5.85849094390869140625e+00,'run-1m81x5nxs92pm',1.79536048549075055117e+09);
INSERT INTO "budget_entries" VALUES(4,'st-1m81x5ekht535','runs','kl/0',1.0,'run-1m81x5w535vvy',1.79536048555491256715e+09);
CREATE TABLE charters (
	study_id VARCHAR(32) NOT NULL, 
	document JSON NOT NULL, 
	content_hash VARCHAR(64) NOT NULL, 
	created_at FLOAT NOT NULL, 
	test_opened_at FLOAT, 
	test_opened_for TEXT, 
	CONSTRAINT pk_charters PRIMARY KEY (study_id), 
	CONSTRAINT fk_charters_study_id_studies FOREIGN KEY(study_id) REFERENCES studies (id)
);
INSERT INTO "charters" VALUES('st-1m81x5ekht535','{"topic": "tool use: KL or no KL?", "question": "How does use_kl_loss change what is learned on calc?", "task": "calc", "metric": "mean reward of held-out episodes", "direction": "maximize", "baseline": "no-kl", "search_split": "validation", "sealed_split": "test", "eval_episodes": 4, "rule": {"alpha": 0.05, "min_effect": 0.02, "min_seeds": 3, "correction": "holm"}, "budget": {"max_runs": null, "max_wall_s": null, "max_llm_tokens": null, "max_llm_usd": null}, "brain": "rules", "assumptions": ["use_kl_loss: the KL arm adds a loss term of coefficient 0.05 towards the base model.", "use_kl_loss: the topic gives no values, so these are compared: no-kl, kl.", "With 1 seed(s) every verdict is inconclusive: the rule asks for 3.", "One iteration: inconclusive arms get more seeds only where --max-runs leaves room for them."]}','2cedf94fbbc29c8a6d803d1cb4eb92d9ce94271f6203d752bd0ae022f6623392',1.79536047437799453738e+09,NULL,NULL);
CREATE TABLE decisions (
	id INTEGER NOT NULL, 
	study_id VARCHAR(32) NOT NULL, 
	iteration INTEGER NOT NULL, 
	action TEXT NOT NULL, 
	reason TEXT NOT NULL, 
	finding_ids JSON NOT NULL, 
	details JSON NOT NULL, 
	created_at FLOAT NOT NULL, 
	CONSTRAINT pk_decisions PRIMARY KEY (id), 
	CONSTRAINT fk_decisions_study_id_studies FOREIGN KEY(study_id) REFERENCES studies (id), 
	CONSTRAINT uq_decisions_study_id_iteration UNIQUE (study_id, iteration)
);
CREATE TABLE episode_samples (
	run_id VARCHAR(32) NOT NULL, 
	episode_id TEXT NOT NULL, 
	kind TEXT NOT NULL, 
	split TEXT NOT NULL, 
	step INTEGER NOT NULL, 
	task_id TEXT NOT NULL, 
	reward FLOAT, 
	is_success BOOLEAN, 
	advantage FLOAT, 
	weight_version INTEGER, 
	messages JSON NOT NULL, 
	samples JSON NOT NULL, 
	created_at FLOAT NOT NULL, 
	CONSTRAINT pk_episode_samples PRIMARY KEY (run_id, episode_id), 
	CONSTRAINT fk_episode_samples_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (id)
);
CREATE TABLE evaluations (
	id INTEGER NOT NULL, 
	run_id VARCHAR(32) NOT NULL, 
	phase TEXT NOT NULL, 
	split TEXT NOT NULL, 
	metric TEXT NOT NULL, 
	weight_version INTEGER NOT NULL, 
	episodes INTEGER NOT NULL, 
	successes INTEGER NOT NULL, 
	mean FLOAT NOT NULL, 
	stderr FLOAT NOT NULL, 
	evaluator_hash TEXT NOT NULL, 
	details JSON NOT NULL, 
	created_at FLOAT NOT NULL, 
	CONSTRAINT pk_evaluations PRIMARY KEY (id), 
	CONSTRAINT fk_evaluations_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (id), 
	CONSTRAINT uq_evaluations_run_id_phase_split UNIQUE (run_id, phase, split)
);
INSERT INTO "evaluations" VALUES(1,'run-1m81x5nxs92pm','base','validation','mean reward of held-out episodes',0,4,0,0.0,0.0,'586c028f7e4d879428a6381f3a9d216defd258d309d06b344598fd4eed0b1a84','{"temperature": 1.0, "rewards": [0.0, 0.0, 0.0, 0.0]}',1.79536047959283590318e+09);
INSERT INTO "evaluations" VALUES(2,'run-1m81x5nxs92pm','final','validation','mean reward of held-out episodes',3,4,0,0.0,0.0,'586c028f7e4d879428a6381f3a9d216defd258d309d06b344598fd4eed0b1a84','{"temperature": 1.0, "rewards": [0.0, 0.0, 0.0, 0.0]}',1.79536048541018819803e+09);
CREATE TABLE events (
	id INTEGER NOT NULL, 
	study_id VARCHAR(32) NOT NULL, 
	run_id VARCHAR(32), 
	severity VARCHAR(32) NOT NULL, 
	kind TEXT NOT NULL, 
	message TEXT NOT NULL, 
	payload JSON NOT NULL, 
	created_at FLOAT NOT NULL, 
	CONSTRAINT pk_events PRIMARY KEY (id), 
	CONSTRAINT fk_events_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (id), 
	CONSTRAINT fk_events_study_id_studies FOREIGN KEY(study_id) REFERENCES studies (id)
);
INSERT INTO "events" VALUES(1,'st-1m81x5ekht535',NULL,'info','study.working','Process 16415 works on the study; servers: http://127.0.0.1:40081','{}',1.79536047431960487361e+09);
INSERT INTO "events" VALUES(2,'st-1m81x5ekht535',NULL,'info','charter.frozen','How does use_kl_loss change what is learned on calc? (task calc, baseline no-kl)','{}',1.79536047438689470292e+09);
INSERT INTO "events" VALUES(3,'st-1m81x5ekht535',NULL,'info','charter.assumption','use_kl_loss: the KL arm adds a loss term of coefficient 0.05 towards the base model.','{}',1.79536047439511060709e+09);
INSERT INTO "events" VALUES(4,'st-1m81x5ekht535',NULL,'info','charter.assumption','use_kl_loss: the topic gives no values, so these are compared: no-kl, kl.','{}',1.79536047439887547485e+09);
INSERT INTO "events" VALUES(5,'st-1m81x5ekht535',NULL,'info','charter.assumption','With 1 seed(s) every verdict is inconclusive: the rule asks for 3.','{}',1.79536047441100549701e+09);
INSERT INTO "events" VALUES(6,'st-1m81x5ekht535',NULL,'info','charter.assumption','One iteration: inconclusive arms get more seeds only where --max-runs leaves room for them.','{}',1.79536047441907477381e+09);
INSERT INTO "events" VALUES(7,'st-1m81x5ekht535',NULL,'info','plan.made','Plan 1: no-kl, kl; seeds 0; up to 2 runs.','{"plan": {"iteration": 0, "rationale": "The arms that the topic names; the KL arm adds a loss term of coefficient 0.05 towards the base model.", "seeds": [0], "hypotheses": [{"statement": "Another use_kl_loss than that of no-kl trains calc better.", "prediction": "kl beats no-kl on held-out episodes.", "arms": ["kl"]}], "arms": [{"name": "no-kl", "factors": {"use_kl_loss": false}, "job": {"algorithm": "grpo", "project_name": "research", "model": "nano", "batch_size": 16, "num_repeat": 8, "lr": 0.001, "mini_batch_num": 4, "temperature": 1.0, "engine": "fake", "total_steps": 3, "use_kl_loss": false}, "rationale": "named by the topic: no-kl", "is_baseline": true, "parent": null}, {"name": "kl", "factors": {"use_kl_loss": true}, "job": {"algorithm": "grpo", "project_name": "research", "model": "nano", "batch_size": 16, "num_repeat": 8, "lr": 0.001, "mini_batch_num": 4, "temperature": 1.0, "engine": "fake", "total_steps": 3, "use_kl_loss": true, "kl_loss_coef": 0.05}, "rationale": "named by the topic: kl", "is_baseline": false, "parent": "no-kl"}]}}',1.795360474451584816e+09);
INSERT INTO "events" VALUES(8,'st-1m81x5ekht535',NULL,'info','arm.ready','no-kl: client and job passed the check.','{}',1.79536047905127549174e+09);
INSERT INTO "events" VALUES(9,'st-1m81x5ekht535',NULL,'info','arm.ready','kl: client and job passed the check.','{}',1.79536047913099551208e+09);
INSERT INTO "events" VALUES(10,'st-1m81x5ekht535','run-1m81x5nxs92pm','info','run.launched','no-kl seed 0 launched on server http://127.0.0.1:40081','{}',1.79536047920360064501e+09);
INSERT INTO "events" VALUES(11,'st-1m81x5ekht535','run-1m81x5nxs92pm','info','run.training','no-kl seed 0 trains (3 steps)','{}',1.7953604796303293705e+09);
INSERT INTO "events" VALUES(12,'st-1m81x5ekht535','run-1m81x5nxs92pm','info','run.finished','no-kl seed 0: held-out reward 0.000 -> 0.000; all 3 steps done','{}',1.79536048550201606747e+09);
INSERT INTO "events" VALUES(13,'st-1m81x5ekht535','run-1m81x5w535vvy','info','run.launched','kl seed 0 launched on server http://127.0.0.1:40081','{}',1.79536048556639027591e+09);
INSERT INTO "events" VALUES(14,'st-1m81x5ekht535',NULL,'warning','study.drained','Stopped working (SIGTERM); go on with `researcher resume st-1m81x5ekht535`.','{}',1.79536048646988463401e+09);
CREATE TABLE experiments (
	id VARCHAR(32) NOT NULL, 
	study_id VARCHAR(32) NOT NULL, 
	hypothesis_id VARCHAR(32), 
	parent_id VARCHAR(32), 
	name TEXT NOT NULL, 
	iteration INTEGER NOT NULL, 
	is_baseline BOOLEAN NOT NULL, 
	factors JSON NOT NULL, 
	job JSON NOT NULL, 
	client_code TEXT NOT NULL, 
	status VARCHAR(32) NOT NULL, 
	note TEXT, 
	created_at FLOAT NOT NULL, 
	updated_at FLOAT NOT NULL, 
	CONSTRAINT pk_experiments PRIMARY KEY (id), 
	CONSTRAINT fk_experiments_hypothesis_id_hypotheses FOREIGN KEY(hypothesis_id) REFERENCES hypotheses (id), 
	CONSTRAINT fk_experiments_parent_id_experiments FOREIGN KEY(parent_id) REFERENCES experiments (id), 
	CONSTRAINT fk_experiments_study_id_studies FOREIGN KEY(study_id) REFERENCES studies (id), 
	CONSTRAINT uq_experiments_study_id_name UNIQUE (study_id, name)
);
INSERT INTO "experiments" VALUES('ex-1m81x5hbag63z','st-1m81x5ekht535',NULL,NULL,'no-kl',0,1,'{"use_kl_loss": false}','{"algorithm": "grpo", "project_name": "research", "model": "nano", "batch_size": 16, "num_repeat": 8, "lr": 0.001, "mini_batch_num": 4, "temperature": 1.0, "engine": "fake", "total_steps": 3, "use_kl_loss": false}','"""Trains the `calc` tasks on one swarm server until its job has done all its steps."""

import argparse
import os
from itertools import islice

import httpx

from swarm import ConnectionStack, SwarmClient, Task, TrainJob, run_episodes_until_all_complete
from swarm.tasks import run_agent, task_family

FAMILY = task_family("calc")
MAX_WORKERS = 64


def attempt(client: SwarmClient, http: httpx.Client, task: Task) -> None:
    """One episode: the agent answers the task, the task pays the reward. A system error aborts it instead."""
    with client.open_episode(task) as episode:
        key = episode.credentials
        episode.output = run_agent(
            FAMILY, task, base_url=key.base_url, api_key=key.api_key, model=key.model, http=http
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", required=True)
    parser.add_argument("--job", required=True)
    parser.add_argument("--seed", type=int, required=True)
    arguments = parser.parse_args()
    job = TrainJob.build_job_from_yaml(arguments.job)
    with (
        SwarmClient(arguments.server, token=os.environ.get("SWARM_TOKEN")) as client,
        httpx.Client(timeout=180.0, transport=ConnectionStack()) as http,
    ):
        status = client.auto_sync_train_config_and_start_engine(job)
        # A client that takes over from another one goes on where the batches have got to.
        tasks = islice(FAMILY.stream("train", seed=arguments.seed), status.step * job.batch_size, None)
        while True:
            episodes = [task for task in islice(tasks, job.batch_size) for _ in range(job.num_repeat)]
            runs = run_episodes_until_all_complete(
                episodes, lambda task: attempt(client, http, task), max_workers=MAX_WORKERS
            )
            if runs.training_complete:
                return
            if len(runs.failures) == len(episodes):
                raise runs.failures[0].error
            print(f"step {client.status().step}: {len(episodes) - len(runs.failures)} episodes done", flush=True)


if __name__ == "__main__":
    main()
','ready','named by the topic: no-kl',1.79536047447488665584e+09,1.79536047904290866844e+09);
INSERT INTO "experiments" VALUES('ex-1m81x5hbk766j','st-1m81x5ekht535','hy-1m81x5hay1q5s','ex-1m81x5hbag63z','kl',0,0,'{"use_kl_loss": true}','{"algorithm": "grpo", "project_name": "research", "model": "nano", "batch_size": 16, "num_repeat": 8, "lr": 0.001, "mini_batch_num": 4, "temperature": 1.0, "engine": "fake", "total_steps": 3, "use_kl_loss": true, "kl_loss_coef": 0.05}','"""Trains the `calc` tasks on one swarm server until its job has done all its steps."""

import argparse
import os
from itertools import islice

import httpx

from swarm import ConnectionStack, SwarmClient, Task, TrainJob, run_episodes_until_all_complete
from swarm.tasks import run_agent, task_family

FAMILY = task_family("calc")
MAX_WORKERS = 64


def attempt(client: SwarmClient, http: httpx.Client, task: Task) -> None:
    """One episode: the agent answers the task, the task pays the reward. A system error aborts it instead."""
    with client.open_episode(task) as episode:
        key = episode.credentials
        episode.output = run_agent(
            FAMILY, task, base_url=key.base_url, api_key=key.api_key, model=key.model, http=http
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", required=True)
    parser.add_argument("--job", required=True)
    parser.add_argument("--seed", type=int, required=True)
    arguments = parser.parse_args()
    job = TrainJob.build_job_from_yaml(arguments.job)
    with (
        SwarmClient(arguments.server, token=os.environ.get("SWARM_TOKEN")) as client,
        httpx.Client(timeout=180.0, transport=ConnectionStack()) as http,
    ):
        status = client.auto_sync_train_config_and_start_engine(job)
        # A client that takes over from another one goes on where the batches have got to.
        tasks = islice(FAMILY.stream("train", seed=arguments.seed), status.step * job.batch_size, None)
        while True:
            episodes = [task for task in islice(tasks, job.batch_size) for _ in range(job.num_repeat)]
            runs = run_episodes_until_all_complete(
                episodes, lambda task: attempt(client, http, task), max_workers=MAX_WORKERS
            )
            if runs.training_complete:
                return
            if len(runs.failures) == len(episodes):
                raise runs.failures[0].error
            print(f"step {client.status().step}: {len(episodes) - len(runs.failures)} episodes done", flush=True)


if __name__ == "__main__":
    main()
','ready','named by the topic: kl',1.79536047448320341111e+09,1.79536047912624454497e+09);
CREATE TABLE experiments_db_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT experiments_db_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "experiments_db_version" VALUES('0001');
CREATE TABLE findings (
	id VARCHAR(32) NOT NULL, 
	study_id VARCHAR(32) NOT NULL, 
	comparison TEXT NOT NULL, 
	hypothesis_id VARCHAR(32), 
	iteration INTEGER NOT NULL, 
	experiment_id VARCHAR(32) NOT NULL, 
	baseline_id VARCHAR(32), 
	metric TEXT NOT NULL, 
	split TEXT NOT NULL, 
	effect FLOAT, 
	ci_low FLOAT, 
	ci_high FLOAT, 
	confidence FLOAT NOT NULL, 
	p_value FLOAT, 
	p_adjusted FLOAT, 
	verdict VARCHAR(32) NOT NULL, 
	method TEXT NOT NULL, 
	run_ids JSON NOT NULL, 
	summary TEXT NOT NULL, 
	details JSON NOT NULL, 
	created_at FLOAT NOT NULL, 
	CONSTRAINT pk_findings PRIMARY KEY (id), 
	CONSTRAINT fk_findings_baseline_id_experiments FOREIGN KEY(baseline_id) REFERENCES experiments (id), 
	CONSTRAINT fk_findings_experiment_id_experiments FOREIGN KEY(experiment_id) REFERENCES experiments (id), 
	CONSTRAINT fk_findings_hypothesis_id_hypotheses FOREIGN KEY(hypothesis_id) REFERENCES hypotheses (id), 
	CONSTRAINT fk_findings_study_id_studies FOREIGN KEY(study_id) REFERENCES studies (id), 
	CONSTRAINT uq_findings_study_id_comparison UNIQUE (study_id, comparison)
);
CREATE TABLE hypotheses (
	id VARCHAR(32) NOT NULL, 
	study_id VARCHAR(32) NOT NULL, 
	"key" TEXT NOT NULL, 
	iteration INTEGER NOT NULL, 
	parent_id VARCHAR(32), 
	statement TEXT NOT NULL, 
	rationale TEXT NOT NULL, 
	verdict VARCHAR(32), 
	verdict_reason TEXT, 
	created_at FLOAT NOT NULL, 
	CONSTRAINT pk_hypotheses PRIMARY KEY (id), 
	CONSTRAINT fk_hypotheses_parent_id_hypotheses FOREIGN KEY(parent_id) REFERENCES hypotheses (id), 
	CONSTRAINT fk_hypotheses_study_id_studies FOREIGN KEY(study_id) REFERENCES studies (id), 
	CONSTRAINT uq_hypotheses_study_id_key UNIQUE (study_id, "key")
);
INSERT INTO "hypotheses" VALUES('hy-1m81x5hay1q5s','st-1m81x5ekht535','h0.0',0,NULL,'Another use_kl_loss than that of no-kl trains calc better.','kl beats no-kl on held-out episodes.',NULL,NULL,1.79536047446287107473e+09);
CREATE TABLE leases (
	resource TEXT NOT NULL, 
	owner TEXT, 
	token INTEGER NOT NULL, 
	ttl_s FLOAT NOT NULL, 
	acquired_at FLOAT NOT NULL, 
	heartbeat_at FLOAT NOT NULL, 
	CONSTRAINT pk_leases PRIMARY KEY (resource)
);
INSERT INTO "leases" VALUES('study:st-1m81x5ekht535',NULL,1,60.0,1.79536047172306942936e+09,1.79536048177603507042e+09);
CREATE TABLE llm_calls (
	id INTEGER NOT NULL, 
	study_id VARCHAR(32) NOT NULL, 
	node TEXT NOT NULL, 
	model TEXT NOT NULL, 
	attempt INTEGER NOT NULL, 
	prompt TEXT NOT NULL, 
	response TEXT, 
	error TEXT, 
	input_tokens INTEGER NOT NULL, 
	output_tokens INTEGER NOT NULL, 
	cost_usd FLOAT NOT NULL, 
	latency_s FLOAT NOT NULL, 
	created_at FLOAT NOT NULL, 
	CONSTRAINT pk_llm_calls PRIMARY KEY (id), 
	CONSTRAINT fk_llm_calls_study_id_studies FOREIGN KEY(study_id) REFERENCES studies (id)
);
CREATE TABLE metric_points (
	run_id VARCHAR(32) NOT NULL, 
	name TEXT NOT NULL, 
	step INTEGER NOT NULL, 
	value FLOAT, 
	recorded_at FLOAT NOT NULL, 
	CONSTRAINT pk_metric_points PRIMARY KEY (run_id, name, step), 
	CONSTRAINT fk_metric_points_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (id)
)
 WITHOUT ROWID

;
INSERT INTO "metric_points" VALUES('run-1m81x5nxs92pm','actor/entropy',1,1.0,1.79536048302484631537e+09);
INSERT INTO "metric_points" VALUES('run-1m81x5nxs92pm','actor/entropy',2,1.0,1.7953604841861345768e+09);
INSERT INTO "metric_points" VALUES('run-1m81x5nxs92pm','actor/entropy',3,1.0,1.79536048527818179127e+09);
INSERT INTO "metric_points" VALUES('run-1m81x5nxs92pm','actor/grad_norm',1,0.5,1.79536048302484631537e+09);
INSERT INTO "metric_points" VALUES('run-1m81x5nxs92pm','actor/grad_norm',2,3.33333333333333314829e-01,1.7953604841861345768e+09);
INSERT INTO "metric_points" VALUES('run-1m81x5nxs92pm','actor/grad_norm',3,0.25,1.79536048527818179127e+09);
INSERT INTO "metric_points" VALUES('run-1m81x5nxs92pm','actor/pg_loss',1,0.0,1.79536048302484631537e+09);
INSERT INTO "metric_points" VALUES('run-1m81x5nxs92pm','actor/pg_loss',2,0.0,1.7953604841861345768e+09);
INSERT INTO "metric_points" VALUES('run-1m81x5nxs92pm','actor/pg_loss',3,0.0,1.79536048527818179127e+09);
INSERT INTO "metric_points" VALUES('run-1m81x5nxs92pm','actor/ppo_kl',1,0.0,1.79536048302484631537e+09);
INSERT INTO "metric_points" VALUES('run-1m81x5nxs92pm','actor/ppo_kl',2,0.0,1.7953604841861345768e+09);
INSERT INTO "metric_points" VALUES('run-1m81x5nxs92pm','actor/ppo_kl',3,0.0,1.79536048527818179127e+09);
INSERT INTO "metric_points" VALUES('run-1m81x5nxs92pm','actor/trained_tokens',1,1222.0,1.79536048302484631537e+09);
INSERT INTO "metric_points" VALUES('run-1m81x5nxs92pm','actor/trained_tokens',2,1262.0,1.7953604841861345768e+09);
INSERT INTO "metric_points" VALUES('run-1m81x5nxs92pm','actor/trained_tokens',3,1272.0,1.79536048527818179127e+09);
INSERT INTO "metric_points" VALUES('run-1m81x5nxs92pm','batch/dropped_episodes',1,0.0,1.79536048302484631537e+09);
INSERT INTO "metric_points" VALUES('run-1m81x5nxs92pm','batch/dropped_episodes',2,0.0,1.7953604841861345768e+09);
INSERT INTO "metric_points" VALUES('run-1m81x5nxs92pm','batch/dropped_episodes',3,0.0,1.79536048527818179127e+09);
INSERT INTO "metric_points" VALUES('run-1m81x5nxs92pm','batch/dropped_tokens',1,0.0,1.79536048302484631537e+09);
INSERT INTO "metric_points" VALUES('run-1m81x5nxs92pm','batch/dropped_tokens',2,0.0,1.7953604841861345768e+09);
INSERT INTO "metric_points" VALUES('run-1m81x5nxs92pm','batch/dropped_tokens',3,0.0,1.79536048527818179127e+09);
INSERT INTO "metric_points" VALUES('run-1m81x5nxs92pm','batch/episodes',1,128.0,1.79536048302484631537e+09);
INSERT INTO "metric_points" VALUES('run-1m81x5nxs92pm','batch/episodes',2,128.0,1.7953604841861345768e+09);
INSERT INTO "metric_points" VALUES('run-1m81x5nxs92pm','batch/episodes',3,128.0,1.79536048527818179127e+09);
INSERT INTO "metric_points" VALUES('run-1m81x5nxs92pm','batch/groups',1,16.0,1.79536048302484631537e+09);
INSERT INTO "metric_points" VALUES('run-1m81x5nxs92pm','batch/groups',2,16.0,1.7953604841861345768e+09);
INSERT INTO "metric_points" VALUES('run-1m81x5nxs92pm','batch/groups',3,16.0,1.79536048527818179127e+09);
INSERT INTO "metric_points" VALUES('run-1m81x5nxs92pm','critic/score/mean',1,0.0,1.79536048302484631537e+09);
INSERT INTO "metric_points" VALUES('run-1m81x5nxs92pm','critic/score/mean',2,0.0,1.7953604841861345768e+09);
INSERT INTO "metric_points" VALUES('run-1m81x5nxs92pm','critic/score/mean',3,0.0,1.79536048527818179127e+09);
INSERT INTO "metric_points" VALUES('run-1m81x5nxs92pm','timing/drain_s',1,1.24407699331641197204e-03,1.79536048302484631537e+09);
INSERT INTO "metric_points" VALUES('run-1m81x5nxs92pm','timing/drain_s',2,1.9897500169463455677e-04,1.7953604841861345768e+09);
INSERT INTO "metric_points" VALUES('run-1m81x5nxs92pm','timing/drain_s',3,1.68728001881390810012e-04,1.79536048527818179127e+09);
CREATE TABLE runs (
	id VARCHAR(32) NOT NULL, 
	study_id VARCHAR(32) NOT NULL, 
	experiment_id VARCHAR(32) NOT NULL, 
	seed INTEGER NOT NULL, 
	attempt INTEGER NOT NULL, 
	idempotency_key TEXT NOT NULL, 
	status VARCHAR(32) NOT NULL, 
	server_url TEXT, 
	external_ids JSON NOT NULL, 
	job JSON NOT NULL, 
	environment JSON NOT NULL, 
	base_weight_version INTEGER, 
	final_weight_version INTEGER, 
	pid INTEGER, 
	log_path TEXT, 
	exit_reason TEXT, 
	diagnosis JSON, 
	created_at FLOAT NOT NULL, 
	updated_at FLOAT NOT NULL, 
	started_at FLOAT, 
	finished_at FLOAT, 
	CONSTRAINT pk_runs PRIMARY KEY (id), 
	CONSTRAINT fk_runs_experiment_id_experiments FOREIGN KEY(experiment_id) REFERENCES experiments (id), 
	CONSTRAINT fk_runs_study_id_studies FOREIGN KEY(study_id) REFERENCES studies (id), 
	CONSTRAINT uq_runs_experiment_id_seed_attempt UNIQUE (experiment_id, seed, attempt), 
	CONSTRAINT uq_runs_idempotency_key UNIQUE (idempotency_key)
);
INSERT INTO "runs" VALUES('run-1m81x5nxs92pm','st-1m81x5ekht535','ex-1m81x5hbag63z',0,1,'st-1m81x5ekht535/no-kl/0/1','finished','http://127.0.0.1:40081','{"pid_started": "3397198", "checkpoint": "/srv/research/studies/st-1m81x5ekht535/servers/0/research/st-1m81x5ekht535_no-kl_seed-0_attempt-1/run-0002/checkpoints/step-000003"}','{"algorithm": "grpo", "project_name": "research", "experiment_name": "st-1m81x5ekht535/no-kl/seed-0/attempt-1", "engine": "fake", "model": "nano", "n_gpu": 0, "seed": 0, "batch_size": 16, "num_repeat": 8, "stop_rule": "enough_tasks", "min_group": 2, "drain_timeout_s": 30.0, "batch_timeout_s": null, "max_staleness": 0, "mixture": null, "episode_timeout_s": 1800.0, "total_steps": 3, "save_freq": 0, "lr": 0.001, "lr_warmup_steps": 0, "weight_decay": 0.0, "betas": [0.9, 0.95], "grad_clip": 1.0, "ppo_epochs": 1, "mini_batch_num": 4, "ppo_max_token_len": 16384, "norm_adv_by_std_in_grpo": true, "gamma": 1.0, "policy_loss": "vanilla", "clip_ratio": 0.2, "clip_ratio_low": 0.2, "clip_ratio_high": 0.2, "clip_ratio_c": 3.0, "loss_agg_mode": "token-mean", "loss_scale_factor": null, "entropy_coeff": 0.0, "rollout_is": "off", "rollout_is_threshold": 2.0, "use_kl_loss": false, "kl_loss_coef": 0.001, "kl_loss_type": "low_var_kl", "temperature": 1.0, "max_response_length": 256, "max_model_len": null, "tool_parser": "auto", "reasoning_parser": "auto", "verl": {}}','{"swarm": "0.1.0", "python": "3.11.7", "platform": "Linux-6.18.44-fc-v595-x86_64-with-glibc2.36"}',0,3,16631,'/srv/research/studies/st-1m81x5ekht535/runs/run-1m81x5nxs92pm/client.log','all 3 steps done',NULL,1.79536047916187787056e+09,1.79536048548477983471e+09,1.79536047962628889087e+09,1.79536048548477983471e+09);
INSERT INTO "runs" VALUES('run-1m81x5w535vvy','st-1m81x5ekht535','ex-1m81x5hbk766j',0,1,'st-1m81x5ekht535/kl/0/1','planned','http://127.0.0.1:40081','{}','{"algorithm": "grpo", "project_name": "research", "model": "nano", "batch_size": 16, "num_repeat": 8, "lr": 0.001, "mini_batch_num": 4, "temperature": 1.0, "engine": "fake", "total_steps": 3, "use_kl_loss": true, "kl_loss_coef": 0.05, "experiment_name": "st-1m81x5ekht535/kl/seed-0/attempt-1", "seed": 0}','{}',NULL,NULL,NULL,NULL,NULL,NULL,1.79536048553997516635e+09,1.79536048645258951186e+09,NULL,NULL);
CREATE TABLE studies (
	id VARCHAR(32) NOT NULL, 
	topic TEXT NOT NULL, 
	brain TEXT NOT NULL, 
	status VARCHAR(32) NOT NULL, 
	status_reason TEXT, 
	settings JSON NOT NULL, 
	created_at FLOAT NOT NULL, 
	updated_at FLOAT NOT NULL, 
	finished_at FLOAT, 
	CONSTRAINT pk_studies PRIMARY KEY (id)
);
INSERT INTO "studies" VALUES('st-1m81x5ekht535','tool use: KL or no KL?','rules','paused','SIGTERM','{"brain": "rules", "model": null, "task": null, "seeds": 1, "steps": 3, "eval_episodes": 4, "servers": [], "parallel": 1, "max_runs": null, "max_hours": null, "max_llm_tokens": null, "max_llm_usd": null, "llm_price": null, "unsafe_no_sandbox": false, "engine": "fake"}',1.79536047166589951516e+09,1.79536048646732687957e+09,NULL);
CREATE INDEX ix_studies_created_at ON studies (created_at);
CREATE INDEX ix_llm_calls_study_id_id ON llm_calls (study_id, id);
CREATE INDEX ix_experiments_hypothesis_id ON experiments (hypothesis_id);
CREATE INDEX ix_findings_hypothesis_id ON findings (hypothesis_id);
CREATE INDEX ix_runs_study_id_created_at ON runs (study_id, created_at);
CREATE INDEX ix_artifacts_run_id ON artifacts (run_id);
CREATE INDEX ix_events_run_id ON events (run_id);
CREATE INDEX ix_events_study_id_id ON events (study_id, id);
COMMIT;
