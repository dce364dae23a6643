"""The evaluator: what is measured of a run, by whom, and on which tasks. The only place where a score comes from.

Place in the flow: launch has a run prepared (engine, base score, client), evaluate has it measured, final_test scores
the test split. Scores come from eval episodes that the reference agent plays here, against the weights the server
serves; nothing a client prints or sends counts. This module decides nothing: it knows no plans, verdicts or brains.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import yaml

import swarm
from experiments_db import EpisodeSample, EpisodeSummary, Experiment, ExperimentStore, Run, RunStatus, hash_json
from researcher.errors import ResearchError
from researcher.execution.background import Drained
from researcher.execution.runs import job_of, total_steps
from researcher.execution.servers import connect
from researcher.types import Charter
from swarm import ConnectionStack, Credentials, Evaluation, SwarmClient, Task, TrainJob, WorkflowOutput, evaluate
from swarm.processes.child import Child
from swarm.sandbox.sandbox import Sandbox, plain_command
from swarm.tasks import run_agent, task_family

BASE, FINAL, SEALED = "base", "final", "sealed"

EVAL_TEMPERATURE = 1.0
"""Fixed for every arm, whatever it was trained at: what is compared is the policy itself, not its mode."""

EVAL_WORKERS = 32
SAMPLED_EPISODES = 4
BOOT_TIMEOUT_S = 300.0
WAIT_TIMEOUT_S = 300.0
REST_POLL_S = 0.1
CLIENT_EXIT_S = 10.0
"""A client sees TrainingComplete at its next begin; beyond that it is ended."""


class RunBroken(ResearchError):
    """This run cannot go on or cannot be scored; the study can."""


@dataclass(frozen=True, slots=True)
class Evaluator:
    """Measures the runs of one study. Methods are called from background threads; each touches one run only."""

    store: ExperimentStore
    charter: Charter
    home: Path
    sandbox: Sandbox | None
    stop: threading.Event

    def folder(self, run_id: str) -> Path:
        return self.home / "runs" / run_id

    def prepare(self, run: Run, experiment: Experiment, url: str, *, is_trusted: bool, is_fresh: bool) -> Child:
        """Boot the run's job on the server, score the base weights, start its client. Raises RunBroken, SwarmError.

        Unless `is_fresh`, the server goes on with the job it has, and a base score measured before is kept.
        """
        job = job_of(run.study_id, experiment, run.seed, run.attempt)
        with connect(url) as client:
            status = client.auto_sync_train_config_and_start_engine(
                job, force_restart=is_fresh, boot_timeout=BOOT_TIMEOUT_S
            )
            self._check_stop()
            if self.store.find_evaluation(run.id, BASE, self.charter.search_split) is None:
                if status.step:
                    raise RunBroken("training has begun and the base weights were never scored")
                self._score(client, run, BASE, self.charter.search_split, version=status.weight_version)
            resolved = client.job().resolved or job
        self._check_stop()
        child = self._start_client(run, experiment, job, url, is_trusted=is_trusted)
        self.store.update_run(
            run.id,
            status=RunStatus.RUNNING,
            server_url=url,
            job=resolved,
            pid=child.pid,
            external_ids={**run.external_ids, "pid_started": child.started},
            log_path=str(self.folder(run.id) / "client.log"),
            environment=_environment(status.server_version),
            base_weight_version=0,
        )
        return child

    def measure(self, run: Run, url: str, child: Child | None, *, is_complete: bool) -> int:
        """End the client, save the weights, score them; returns their version.

        Raises RunBroken if they are not what the arm's job gives: after all its steps if `is_complete`.
        """
        if child is not None:
            child.wait(CLIENT_EXIT_S)
            child.stop()
        self._check_stop()
        with connect(url) as client:
            self._await_rest(client)
            self._check_job(client, run)
            saved = client.save_checkpoint()
            version = saved.weight_version
            if is_complete and version != total_steps(run.job):
                raise RunBroken(f"the server serves weight version {version}, expected {total_steps(run.job)}")
            external = {**self.store.get_run(run.id).external_ids, "checkpoint": saved.path}
            self.store.update_run(run.id, external_ids=external, final_weight_version=version)
            sampled = self._score(client, run, FINAL, self.charter.search_split, version=version)
            self._keep_episodes(client, run, sampled, version)
        self._keep_files(run)
        return version

    def measure_sealed(self, run: Run, url: str) -> None:
        """Score a finished run's checkpoint on the sealed split. Raises RunBroken if it has none."""
        checkpoint = run.external_ids.get("checkpoint")
        if not checkpoint:
            raise RunBroken("no checkpoint was saved")
        name = f"{run.job['experiment_name']}/sealed"[-200:]
        job = {**run.job, "model": checkpoint, "experiment_name": name}
        with connect(url) as client:
            status = client.auto_sync_train_config_and_start_engine(
                job, force_restart=True, boot_timeout=BOOT_TIMEOUT_S
            )
            self._check_stop()
            self._score(client, run, SEALED, self.charter.sealed_split, version=status.weight_version)
            client.stop_engine()

    def _score(self, client: SwarmClient, run: Run, phase: str, split: str, *, version: int) -> list[tuple[Task, str]]:
        """Measure and store; returns some of the tasks with the ids of their episodes."""
        family = task_family(self.charter.task)
        tasks = family.tasks(split, self.charter.eval_episodes)
        chosen = {task.task_id for task in tasks[:SAMPLED_EPISODES]}
        sampled: list[tuple[Task, str]] = []

        with httpx.Client(timeout=httpx.Timeout(180.0, connect=10.0), transport=ConnectionStack()) as http:

            def attempt(task: Task, credentials: Credentials) -> WorkflowOutput:
                self._check_stop()
                if task.task_id in chosen:
                    sampled.append((task, credentials.episode_id))
                return run_agent(
                    family,
                    task,
                    base_url=credentials.base_url,
                    api_key=credentials.api_key,
                    model=credentials.model,
                    http=http,
                    temperature=EVAL_TEMPERATURE,
                )

            result = evaluate(client, tasks, attempt, EVAL_WORKERS, wait_timeout=WAIT_TIMEOUT_S)
        self._record(run, phase, split, result, expected=len(tasks), version=version)
        return sampled

    def _record(self, run: Run, phase: str, split: str, result: Evaluation, *, expected: int, version: int) -> None:
        if result.n != expected or result.mean is None:
            first = result.failures[0].error if result.failures else "no reason given"
            raise RunBroken(f"{expected - result.n} of {expected} {phase} episodes failed: {first}")
        if result.weight_versions != (version,):
            raise RunBroken(f"{phase} episodes were sampled from versions {result.weight_versions}, expected {version}")
        rewards = [reward for attempts in result.rewards.values() for reward in attempts]
        self.store.record_evaluation(
            run.id,
            phase=phase,
            split=split,
            metric=self.charter.metric,
            weight_version=version,
            episodes=result.n,
            successes=sum(reward > 0 for reward in rewards),
            mean=result.mean,
            stderr=result.stderr or 0.0,
            evaluator_hash=self.evaluator_hash(split),
            details={"temperature": EVAL_TEMPERATURE, "rewards": [round(reward, 6) for reward in rewards]},
        )

    def evaluator_hash(self, split: str) -> str:
        """Two scores with the same hash were measured in the same way on the same tasks."""
        family = task_family(self.charter.task)
        tasks = family.tasks(split, self.charter.eval_episodes)
        return hash_json(
            {
                "task": family.name,
                "split": split,
                "tasks": sha256("\n".join(task.task_id for task in tasks).encode()).hexdigest(),
                "temperature": EVAL_TEMPERATURE,
                "max_turns": family.max_turns,
                "max_tokens": family.max_tokens,
                "version": swarm.__version__,
            }
        )

    def _await_rest(self, client: SwarmClient) -> None:
        """Until no batch is being trained. Raises RunBroken after a while, SwarmError if the engine failed."""
        deadline = time.monotonic() + WAIT_TIMEOUT_S
        while (status := client.status()).state not in ("ROLLING", "COMPLETE"):
            self._check_stop()
            if status.state in ("FAILED", "OFFLINE") or time.monotonic() > deadline:
                raise RunBroken(f"the engine is {status.state}: {status.reason or 'it does not come to rest'}")
            time.sleep(REST_POLL_S)

    def _check_job(self, client: SwarmClient, run: Run) -> None:
        """The server must still run the job it was given: a client could have changed it."""
        present = client.job().resolved
        if present is None or TrainJob.model_validate(present) != TrainJob.model_validate(dict(run.job)):
            raise RunBroken("the server no longer runs the arm's job: its score would not be the arm's")

    def _start_client(
        self, run: Run, experiment: Experiment, job: Mapping[str, Any], url: str, *, is_trusted: bool
    ) -> Child:
        folder = self.folder(run.id).resolve()
        # The client may write where it runs, so the log and the files on record lie outside: a link planted in their
        # place would make the researcher read or overwrite what it points to.
        work = folder / "work"
        if work.exists():
            shutil.rmtree(work)
        work.mkdir(parents=True)
        for place in (folder, work):
            (place / "client.py").write_text(experiment.client_code, encoding="utf-8")
            (place / "job.yaml").write_text(yaml.safe_dump(dict(job), sort_keys=False), encoding="utf-8")
        argv = [sys.executable, "client.py", "--server", url, "--job", "job.yaml", "--seed", str(run.seed)]
        token = os.environ.get("SWARM_TOKEN")
        if is_trusted or self.sandbox is None:
            command = plain_command(argv, server_url=url, token=token)
        else:
            command = self.sandbox.command(argv, workdir=work, server_url=url, token=token)
        log = folder / "client.log"
        return Child(command.argv, env=command.env, cwd=work, out=log, errors=log, on_stop=command.cleanup)

    def _keep_episodes(self, client: SwarmClient, run: Run, sampled: list[tuple[Task, str]], version: int) -> None:
        records: list[EpisodeSample] = []
        for task, episode_id in sampled[:SAMPLED_EPISODES]:
            detail = client.episode(episode_id)
            last = detail.turns[-1] if detail.turns else None
            summary = EpisodeSummary(
                run_id=run.id,
                episode_id=episode_id,
                kind="eval",
                split=self.charter.search_split,
                step=version,
                task_id=task.task_id,
                reward=detail.episode.reward,
                is_success=detail.episode.is_success,
                advantage=detail.advantage,
                weight_version=version,
                created_at=detail.episode.begun_at,
            )
            messages = (*last.messages, last.reply) if last else ()
            samples = tuple(sample.model_dump(mode="json") for sample in detail.samples)
            records.append(EpisodeSample(summary, messages, samples))
        self.store.record_episodes(run.id, records)

    def _keep_files(self, run: Run) -> None:
        for kind, name in (("client", "client.py"), ("job", "job.yaml"), ("log", "client.log")):
            keep_file(self.store, run.study_id, self.folder(run.id) / name, kind, run_id=run.id)

    def _check_stop(self) -> None:
        if self.stop.is_set():
            raise Drained


def keep_file(store: ExperimentStore, study_id: str, path: Path, kind: str, *, run_id: str | None = None) -> None:
    """Note a file of a study with its hash; one that does not exist is left out."""
    if path.is_file():
        content = path.read_bytes()
        store.record_artifact(
            study_id,
            kind,
            str(path.resolve()),
            sha256=sha256(content).hexdigest(),
            size_bytes=len(content),
            run_id=run_id,
        )


def _environment(server_version: str) -> dict[str, str]:
    return {"swarm": server_version, "python": platform.python_version(), "platform": platform.platform()}
