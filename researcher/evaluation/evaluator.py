"""The evaluator, the only place where a score comes from: eval episodes that the environment alone grades."""

from __future__ import annotations

import logging
import platform
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

from experiments_db import Experiment, Run, RunStatus, hash_json
from researcher.base_scores import FirstScore, find_base_score, key_of, read_first_score
from researcher.errors import RunBroken, RunLost
from researcher.evaluation.run_record import RunMark, check_record, held_out_of, mark_begin
from researcher.evaluation.scoring import SAMPLED_EPISODES, RunScorer, evaluator_hash, score_of
from researcher.execution.early_stopping import boot_timeout_s, step_limit_s
from researcher.execution.environments import trained_on
from researcher.execution.training_process import bound_options, quota_options, start_training
from researcher.phases import (
    AT_STEP,
    BASE,
    CHECKPOINTS,
    ENDED_AT,
    FINAL,
    FROM_RUNG,
    KEY,
    MANIFEST,
    MANIFESTS,
    MEASURED_ON,
    PRUNED,
    RECORD,
    TEST,
    TRAIN_DIGEST,
)
from researcher.player import Player, plays_its_own
from researcher.record.costs import cost_to_json, read_training_cost
from researcher.record.log import keep_file
from researcher.record.runs import PROJECT, job_of_run, total_steps
from researcher.servers.jobs import RESTING, SERVING, await_state, is_replaced, launch_once, refuse_own_successor
from swarm import Credentials, SwarmClient, SwarmError, Task, TrainJob
from swarm.processes import Child, end_stale
from swarm.program import reply_limit
from swarm.tasks import Split

logger = logging.getLogger(__name__)

CLIENT_EXIT_S = 10.0
"""The seconds in which a client may see TrainingComplete at its next begin; after that it is stopped."""


@dataclass(frozen=True, slots=True)
class Evaluator(RunScorer):
    """The measurement of the runs of one study.

    Background threads call its methods; each call touches one run only.
    """

    connect: Callable[[str], SwarmClient]
    token_of: Callable[[str], str | None]

    def _check_train_environment(self, experiment: Experiment) -> dict[str, str]:
        """Return the digest of the arm's own training environment, keyed by TRAIN_DIGEST; empty if the arm has none.

        Raises RunBroken if other runs of the arm had another digest.
        """
        if experiment.train_environment is None:
            return {}
        opened = self.environments.open(experiment.train_environment)
        others = self.store.list_runs(experiment_id=experiment.id)
        digests = {other.external_ids.get(TRAIN_DIGEST) for other in others} - {None, opened.digest}
        if digests:
            raise RunBroken(f"the environment {opened.name} was changed since other runs of this arm trained on it")
        return {TRAIN_DIGEST: opened.digest}

    def prepare(self, run: Run, experiment: Experiment, url: str, *, is_trusted: bool) -> Child:
        """Have the server serve the run's job, score the base weights, and start the client.

        May be repeated after any failure: a run that the server has launched continues there, and a base score that was
        measured before is kept. Raises RunBroken, RunLost or SwarmError.
        """
        trained = self._check_train_environment(experiment)
        job = job_of_run(run, experiment)
        with self.connect(url) as client:
            launch_once(client, run, job, PROJECT, boot_timeout_s(job))
            status = await_state(client, SERVING, boot_timeout_s(job), self.check_stop, failed=("FAILED",))
            run = self._mark(client, run, job)
            resolved = client.job().resolved or job
            if self.store.find_evaluation(run.id, BASE, self.charter.search_split) is None:
                if status.step and FROM_RUNG not in run.external_ids:
                    raise RunBroken("training has begun and the base weights were never scored")
                self._score_base(client, run, resolved)
        began_at = status.weight_version if FROM_RUNG in run.external_ids else 0
        self.check_stop()
        if run.pid is not None:
            end_stale(run.pid, run.external_ids.get("pid_started"))
        child = self._start_training(run, experiment, job, url, is_trusted=is_trusted)
        self.store.update_run(
            run.id,
            status=RunStatus.RUNNING,
            server_url=url,
            job=resolved,
            pid=child.pid,
            external_ids={**run.external_ids, **trained, "pid_started": child.started},
            log_path=str(self.folder(run.id) / "train.log"),
            environment=_environment(status.server_version),
            base_weight_version=began_at if run.base_weight_version is None else run.base_weight_version,
        )
        return child

    def _score_base(self, client: SwarmClient, run: Run, job: Mapping[str, Any]) -> None:
        """Score the base weights once for all runs that start from them and have the same agent.

        A run that goes on from a checkpoint has the score of the run that wrote it. Raises RunBroken without one.
        """
        split, version = self.charter.search_split, 0
        key = key_of(job, self.player(run, BASE).code, self.evaluator_hash(run, BASE, split))
        known = find_base_score(self.store, run.study_id, phase=BASE, split=split, key=key, weight_version=version)
        if known is None and FROM_RUNG in run.external_ids:
            raise RunBroken("it goes on from a checkpoint, and the base weights were never scored")
        if known is None and self._takes_first_score(run, key):
            return
        if known is None:
            sampled = self.score(client, run, BASE, split, version=version, details={KEY: key})
            self.keep_episodes(client, run, sampled, version)
            return
        self.store.record_evaluation(
            run.id,
            phase=BASE,
            split=split,
            metric=known.metric,
            weight_version=version,
            episodes=known.episodes,
            successes=known.successes,
            mean=known.mean,
            stderr=known.stderr,
            evaluator_hash=known.evaluator_hash,
            details={MEASURED_ON: known.run_id, **known.details},
        )

    def measure_base(self, study_id: str, url: str, job: Mapping[str, Any], agent: Player) -> FirstScore:
        """Return the score of the base weights of a job with the baseline's agent, before any run.

        Raises RunBroken, ServerProblem or SwarmError.
        """
        split, explores = self.charter.search_split, self.charter.search is not None
        shared = None if plays_its_own(self.charter, BASE) else agent
        way = evaluator_hash(self.charter, self.environment(), split, explores=explores, shared=shared)
        tasks = self.charter.tasks_of(split, explores=explores)
        seed = int(hash_json({"study": study_id, "phase": BASE, "split": split})[:12], 16)
        sampled: list[tuple[str, str]] = []

        def on_attempt(task: Task, credentials: Credentials) -> None:
            self.check_stop()
            if len(sampled) < SAMPLED_EPISODES:
                sampled.append((task.task_id, credentials.episode_id))

        with self.connect(url) as client:
            client.auto_sync_train_config_and_start_engine(
                dict(job), force_restart=True, boot_timeout=boot_timeout_s(job)
            )
            try:
                key = key_of(client.job().resolved or job, agent.code, way)
                drawn = {KEY: key, "sampling_seed": seed, "max_tokens": reply_limit(client, self.environment())}
                result = self.play(
                    client,
                    agent,
                    self.home / "base",
                    split=split,
                    tasks=tasks,
                    seed=seed,
                    worst=self.worst_score(study_id),
                    wait_timeout=step_limit_s(job),
                    on_attempt=on_attempt,
                )
            finally:
                client.stop_engine()
        score = score_of(result, BASE, split, self.charter.metric, way, version=0, details=drawn)
        return FirstScore(key, url, tuple(sampled), score)

    def _takes_first_score(self, run: Run, key: str) -> bool:
        """Return whether the score that was measured before the first plan is that of the run, and store it if so."""
        first = read_first_score(self.store, run.study_id)
        if first is None or first.key != key:
            return False
        self.store.record_evaluation(run.id, **first.score)
        try:
            with self.connect(first.url) as client:
                self.keep_episodes(client, run, first.sampled, 0)
        except SwarmError as error:
            # The score stands without conversations to show.
            logger.info("the attempts of the base score are not kept: %s", error.message)
        return True

    def measure(self, run: Run, url: str, child: Child | None) -> int:
        """End the client, save the weights, score them and return their version.

        Raises RunBroken if the weights are not those of the arm's job, after all its steps or after the step at which
        the study ended it. Raises RunRejected if the server's record is not that of an honest run.
        """
        if child is not None:
            child.wait(CLIENT_EXIT_S)
            child.stop()
        self.check_stop()
        if self.store.find_evaluation(run.id, FINAL, self.charter.search_split) is not None:
            return self._final_version(run)
        with self.connect(url) as client:
            if is_replaced(client, run, boot_timeout_s(run.job)):
                return self._measure_saved(client, run, url)
            await_state(client, RESTING, step_limit_s(run.job), self.check_stop)
            self._check_job(client, run)
            self._check_record(client, run)
            saved = client.save_checkpoint()
            version = saved.weight_version
            expected = run.external_ids.get(ENDED_AT, total_steps(run.job))
            if version != expected:
                raise RunBroken(f"the server serves weight version {version}, expected {expected}")
            external = {**self.store.get_run(run.id).external_ids, "checkpoint": saved.path}
            if self.charter.eval_every:
                external[CHECKPOINTS] = self._kept_checkpoints(client, run, version)
            external[MANIFESTS] = _digests_of_manifests([saved.path, *external.get(CHECKPOINTS, {}).values()])
            training = read_training_cost(client, run)
            self.store.update_run(
                run.id,
                external_ids=external,
                final_weight_version=version,
                training_cost=None if training is None else cost_to_json(training),
            )
            sampled = self._score_weights(client, run, FINAL, self.charter.search_split, version=version)
            self.keep_episodes(client, run, sampled, version)
        self._keep_files(run)
        return version

    def _measure_saved(self, client: SwarmClient, run: Run, url: str) -> int:
        """Score the weights that were saved before the run lost its place on the server.

        Raises RunBroken or RunLost if none were saved: that happens only after the record of the run is found honest.
        """
        checkpoint = self.store.get_run(run.id).external_ids.get("checkpoint")
        if not checkpoint:
            refuse_own_successor(client, run)
            raise RunLost(f"a later run took its place on {url} before its weights were saved")
        self._measure_checkpoint(run, url, checkpoint, FINAL, self.charter.search_split)
        self._keep_files(run)
        return self._final_version(run)

    def _final_version(self, run: Run) -> int:
        return self.store.get_run(run.id).final_weight_version or 0

    def measure_test(self, run: Run, url: str) -> None:
        """Score a finished run's checkpoint on the test split.

        Raises RunBroken if the run has no checkpoint.
        """
        self._measure_checkpoint(run, url, run.external_ids.get("checkpoint"), TEST, self.charter.test_split)

    def measure_at_step(self, run: Run, url: str, step: int) -> None:
        """Score a finished run's checkpoint of a step on the search split.

        Raises RunBroken if that checkpoint was not kept.
        """
        checkpoint = run.external_ids.get(CHECKPOINTS, {}).get(str(step))
        self._measure_checkpoint(run, url, checkpoint, f"{AT_STEP}{step}", self.charter.search_split)

    def _measure_checkpoint(self, run: Run, url: str, checkpoint: str | None, phase: str, split: str) -> None:
        if not checkpoint:
            raise RunBroken("no checkpoint was saved")
        if str(Path(checkpoint).resolve()) in run.external_ids.get(PRUNED, ()):
            raise RunBroken("its checkpoint was removed once nothing needed it: --keep-checkpoints all keeps them")
        name = f"{run.job['experiment_name']}/{phase}"[-200:]
        job = {**run.job, "model": checkpoint, "experiment_name": name}
        with self.connect(url) as client:
            status = client.auto_sync_train_config_and_start_engine(
                job, force_restart=True, boot_timeout=boot_timeout_s(job)
            )
            self.check_stop()
            self._score_weights(client, run, phase, split, version=status.weight_version)
            client.stop_engine()

    def _score_weights(
        self, client: SwarmClient, run: Run, phase: str, split: str, *, version: int
    ) -> list[tuple[str, str]]:
        """Measure the scores of trained weights that are not on record yet; the one of `phase` itself comes last.

        Returns the ids of some of its tasks and of their episodes.
        """
        sampled: list[tuple[str, str]] = []
        for each in self.phases_of(run, phase):
            if self.store.find_evaluation(run.id, each, split) is None:
                sampled = self.score(client, run, each, split, version=version)
        return sampled

    def is_scored(self, run: Run, phase: str, split: str) -> bool:
        """Return whether all scores of a run at this point are on record."""
        return all(self.store.find_evaluation(run.id, each, split) for each in self.phases_of(run, phase))

    def _check_job(self, client: SwarmClient, run: Run) -> None:
        """Raise RunBroken unless the server still runs the job it was given, which a program could have changed."""
        present = client.job().resolved
        if present is None or TrainJob.model_validate(present) != TrainJob.model_validate(dict(run.job)):
            raise RunBroken("the server no longer runs the arm's job: its score would not be the arm's")

    def _mark(self, client: SwarmClient, run: Run, job: Mapping[str, Any]) -> Run:
        """Store where the run's record begins; a run that is resumed keeps its mark."""
        if RECORD in run.external_ids:
            return run
        mark = mark_begin(client, job)
        return self.store.update_run(run.id, external_ids={**run.external_ids, RECORD: [mark.event_id, mark.at]})

    def _check_record(self, client: SwarmClient, run: Run) -> None:
        event_id, at = self.store.get_run(run.id).external_ids[RECORD]
        environment = self.environment()
        held_out = [
            item.task
            for split in (self.charter.search_split, self.charter.test_split)
            for item in islice(environment.tasks(Split(split)), self.charter.held_out)
        ]
        check_record(
            client,
            RunMark(event_id, at),
            held_out_of({task.task_id: task.main_query for task in held_out}),
            run.id,
            ended_at=run.external_ids.get(ENDED_AT),
        )

    def _kept_checkpoints(self, client: SwarmClient, run: Run, steps: int) -> dict[str, str]:
        """Return the paths of the checkpoints to score, by step, without the base and the end."""
        event_id, _ = self.store.get_run(run.id).external_ids[RECORD]
        kept = {
            int(event.detail["step"]): str(event.detail["path"])
            for event in client.past_events(event_id)
            if event.kind == "checkpoint.saved" and event.detail.get("kept")
        }
        return {
            str(step): kept[step]
            for step in range(self.charter.eval_every, steps, self.charter.eval_every)
            if step in kept
        }

    def _start_training(
        self, run: Run, experiment: Experiment, job: Mapping[str, Any], url: str, *, is_trusted: bool
    ) -> Child:
        return start_training(
            self.folder(run.id).resolve(),
            experiment.program_code,
            job,
            run_id=run.id,
            environment=self.environments.reference(trained_on(experiment, self.charter)),
            url=url,
            token=self.token_of(url),
            is_sandboxed=not is_trusted and self.sandbox is not None,
            until=quota_options(self.charter, self.store, run, experiment),
            bounds=bound_options(self.charter),
        )

    def _keep_files(self, run: Run) -> None:
        for kind, name in (
            ("program", "program.py"),
            ("job", "job.yaml"),
            ("log", "train.log"),
            ("output", "work/program.log"),
        ):
            keep_file(self.store, run.study_id, self.folder(run.id) / name, kind, run_id=run.id)


def _digests_of_manifests(checkpoints: Iterable[str]) -> dict[str, str]:
    """Return the SHA-256 of each checkpoint's manifest by its path, of those on this machine."""
    manifests = {path: Path(path) / MANIFEST for path in checkpoints}
    return {path: sha256(file.read_bytes()).hexdigest() for path, file in manifests.items() if file.is_file()}


def _environment(server_version: str) -> dict[str, str]:
    return {"swarm": server_version, "python": platform.python_version(), "platform": platform.platform()}
