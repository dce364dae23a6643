"""The evaluator, the only place where a score comes from: eval episodes that the environment alone grades."""

from __future__ import annotations

import platform
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

import swarm
from experiments_db import Author, EpisodeSample, EpisodeSummary, Experiment, ExperimentStore, Run, RunStatus, hash_json
from prompts import load
from researcher.base_scores import find_base_score, key_of
from researcher.charter import Charter
from researcher.errors import RunBroken, RunLost, RunRejected, ScoreIncomplete
from researcher.evaluation.authorship import MOST_TASKS, count_authorship, read_answers
from researcher.evaluation.manipulation import AttemptTranscript, check_from_json, count_passing
from researcher.evaluation.run_record import RunMark, check_record, held_out_of, mark_begin
from researcher.execution.background import Drained
from researcher.execution.early_stopping import TIME_LIMITS
from researcher.execution.environments import StudyEnvironments, trained_on
from researcher.execution.training_process import bound_options, quota_options, start_training
from researcher.phases import (
    AT_STEP,
    AUTHORSHIP,
    BASE,
    CHECKPOINTS,
    COST,
    ENDED_AT,
    FINAL,
    FROM_RUNG,
    KEY,
    MANIPULATION,
    MEASURED_ON,
    PRUNED,
    RECORD,
    TEST,
    TRAIN_DIGEST,
)
from researcher.plan import ManipulationCheck
from researcher.record.costs import cost_of_attempts, cost_to_json, read_training_cost
from researcher.record.runs import PROJECT, engine_of, job_of_run, total_steps
from researcher.servers.jobs import await_serving, is_replaced, launch_once, refuse_own_successor
from swarm import Credentials, Evaluation, SwarmClient, Task, TrainJob
from swarm.environments import Environment
from swarm.errors import ProgramFailure
from swarm.processes import Child, end_stale
from swarm.program import (
    EVAL_TEMPERATURE,
    MAX_HUNG,
    PLAIN,
    EndedAttempt,
    Program,
    ProgramProcess,
    measure,
    place_program,
)
from swarm.sandbox import Sandbox
from swarm.tasks import Split

EVAL_WORKERS = 64
SAMPLED_EPISODES = 16
"""The final attempts of a run whose conversations are stored."""
TOKEN_SAMPLES = 4
"""Those of them that are stored token by token."""
CHECKED_EPISODES = 32
"""The final attempts of a run that a manipulation check looks at."""
MAX_BROKEN = 0.02
"""The largest share of a score's attempts that a program may break if the worst score is unknown.

The score of a broken attempt cannot be told then."""
REST_POLL_S = 0.1
MAX_REASONS, MAX_REASON_CHARS = 20, 300
"""Bounds on the stored reasons for one score's broken and repeated attempts."""
CLIENT_EXIT_S = 10.0
"""The seconds in which a client may see TrainingComplete at its next begin; after that it is stopped."""


def boot_timeout_s(job: Mapping[str, Any]) -> float:
    """Return the longest time, in seconds, until the engine of a job serves."""
    return TIME_LIMITS[engine_of(job)].boot_s


def step_limit_s(job: Mapping[str, Any]) -> float:
    """Return the longest time, in seconds, that the engine of a job may train before it serves again."""
    return TIME_LIMITS[engine_of(job)].step_s


@dataclass(frozen=True, slots=True)
class Evaluator:
    """The measurement of the runs of one study.

    Background threads call its methods; each call touches one run only.
    """

    store: ExperimentStore
    charter: Charter
    home: Path
    sandbox: Sandbox | None
    environments: StudyEnvironments
    connect: Callable[[str], SwarmClient]
    token_of: Callable[[str], str | None]
    is_stopped: Callable[[], bool]

    def folder(self, run_id: str) -> Path:
        return self.home / "runs" / run_id

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
            status = await_serving(client, boot_timeout_s(job), self._check_stop)
            run = self._mark(client, run, job)
            resolved = client.job().resolved or job
            if self.store.find_evaluation(run.id, BASE, self.charter.search_split) is None:
                if status.step and FROM_RUNG not in run.external_ids:
                    raise RunBroken("training has begun and the base weights were never scored")
                self._score_base(client, run, experiment, resolved, url=url)
        began_at = status.weight_version if FROM_RUNG in run.external_ids else 0
        self._check_stop()
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

    def _score_base(
        self, client: SwarmClient, run: Run, experiment: Experiment, job: Mapping[str, Any], *, url: str
    ) -> None:
        """Score the base weights once for all runs that start from them and have the same agent.

        A run that goes on from a checkpoint has the score of the run that wrote it. Raises RunBroken without one.
        """
        split, version = self.charter.search_split, 0
        key = key_of(job, experiment.program_code, self.evaluator_hash(split, explores=bool(run.rung)))
        known = find_base_score(self.store, run.study_id, phase=BASE, split=split, key=key, weight_version=version)
        if known is None and FROM_RUNG in run.external_ids:
            raise RunBroken("it goes on from a checkpoint, and the base weights were never scored")
        if known is None:
            sampled = self._score(client, run, BASE, split, url=url, version=version, details={KEY: key})
            self._keep_episodes(client, run, sampled, version)
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

    def measure(self, run: Run, url: str, child: Child | None) -> int:
        """End the client, save the weights, score them and return their version.

        Raises RunBroken if the weights are not those of the arm's job, after all its steps or after the step at which
        the study ended it. Raises RunRejected if the server's record is not that of an honest run.
        """
        if child is not None:
            child.wait(CLIENT_EXIT_S)
            child.stop()
        self._check_stop()
        if self.store.find_evaluation(run.id, FINAL, self.charter.search_split) is not None:
            return self._final_version(run)
        with self.connect(url) as client:
            if is_replaced(client, run, boot_timeout_s(run.job)):
                return self._measure_saved(client, run, url)
            self._await_rest(client, step_limit_s(run.job))
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
            training = read_training_cost(client, run)
            self.store.update_run(
                run.id,
                external_ids=external,
                final_weight_version=version,
                training_cost=None if training is None else cost_to_json(training),
            )
            sampled = self._score(client, run, FINAL, self.charter.search_split, url=url, version=version)
            self._keep_episodes(client, run, sampled, version)
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
            self._check_stop()
            self._score(client, run, phase, split, url=url, version=status.weight_version)
            client.stop_engine()

    def _score(
        self,
        client: SwarmClient,
        run: Run,
        phase: str,
        split: str,
        *,
        url: str,
        version: int,
        details: Mapping[str, Any] = MappingProxyType({}),
    ) -> list[tuple[Task, str]]:
        """Measure with the agent of the arm's program and store the score.

        Returns some of the tasks with the ids of their episodes.
        """
        environment = self._environment()
        tasks = self.charter.tasks_of(split, explores=bool(run.rung))
        shown = islice(environment.tasks(Split(split)), tasks.start, min(tasks.start + SAMPLED_EPISODES, tasks.stop))
        first = {item.task.task_id for item in shown}
        check = self._check_of(run) if phase == FINAL else None
        is_foreign = phase == FINAL and self._experiment(run).author is Author.LANGUAGE_MODEL
        sampled: list[tuple[Task, str]] = []
        ended: list[EndedAttempt] = []

        def on_attempt(task: Task, credentials: Credentials) -> None:
            self._check_stop()
            if task.task_id in first:
                sampled.append((task, credentials.episode_id))

        def on_end(attempt: EndedAttempt) -> None:
            if attempt.error is None or isinstance(attempt.error, ProgramFailure):
                ended.append(attempt)

        # The seed is fixed before the first attempt, and the same if the score is measured again.
        sampling_seed = int(hash_json({"run": run.id, "phase": phase, "split": split})[:12], 16)
        with self._program(run, phase, url) as program:
            result = measure(
                client,
                environment,
                program,
                split=Split(split),
                episodes=tasks.stop - tasks.start,
                skip=tasks.start,
                max_workers=EVAL_WORKERS,
                worst=self._worst_score(run.study_id),
                seed=sampling_seed,
                attempt_calls=self.charter.attempt_calls,
                attempt_tokens=self.charter.attempt_tokens,
                wait_timeout=step_limit_s(run.job),
                on_attempt=on_attempt,
                on_end=on_end if is_foreign or check is not None else None,
            )
        most = max(1, MAX_BROKEN * (tasks.stop - tasks.start))
        if self.charter.metric_range is None and len(result.broken) > most:
            raise RunRejected(
                f"the program broke {len(result.broken)} of {result.n} {phase} attempts, and the worst possible "
                f"score is unknown; the first: {result.broken[0].error}"
            )
        drawn = {**details, "sampling_seed": sampling_seed}
        if check is not None:
            drawn[MANIPULATION] = self._count_passing(client, run, check, ended)
        if is_foreign:
            drawn[AUTHORSHIP] = self._count_authorship(client, run, Split(split), tasks.start, ended)
        self.record_score(run, phase, split, result, version=version, details=drawn)
        return sampled

    def _check_of(self, run: Run) -> ManipulationCheck | None:
        document = self._experiment(run).manipulation
        return None if document is None else check_from_json(document)

    def _count_passing(
        self, client: SwarmClient, run: Run, check: ManipulationCheck, ended: list[EndedAttempt]
    ) -> dict[str, Any]:
        """Return how many of the run's final attempts pass its arm's manipulation check, as JSON."""
        looked_at = sorted(ended, key=lambda attempt: attempt.task.task_id)[:CHECKED_EPISODES]
        said = [
            AttemptTranscript(
                tuple(attempt.transcript), tuple(turn.reply for turn in client.episode(attempt.episode_id).turns)
            )
            for attempt in looked_at
        ]
        folder = self.folder(run.id) / MANIPULATION
        return count_passing(check, said, folder=folder, server_url=client.url, sandbox=self.sandbox).to_json()

    def _count_authorship(
        self, client: SwarmClient, run: Run, split: Split, first: int, ended: list[EndedAttempt]
    ) -> dict[str, Any]:
        """Return in how many of the final attempts the code did the work of the model, as JSON."""
        runs = [item.id for item in self.store.list_runs(experiment_id=run.experiment_id) if item.id != run.id]
        scores = self.store.list_evaluations(run_ids=runs, phase=FINAL) if runs else []
        answers = read_answers(self._environment(), split, skip=first)
        looked_at = [attempt for attempt in ended if attempt.task.task_id in answers or not answers][:MOST_TASKS]
        seen = [(attempt, client.episode(attempt.episode_id)) for attempt in looked_at]
        earlier = [score.details[AUTHORSHIP] for score in scores if AUTHORSHIP in score.details]
        return count_authorship(seen, answers).to_json(earlier)

    def _worst_score(self, study_id: str) -> float:
        """Return the score of an attempt that the program breaks.

        It is the worse end of the metric's range, or the worst score of any attempt of the study.
        """
        is_minimized = self.charter.direction == "minimize"
        if self.charter.metric_range is not None:
            return self.charter.metric_range[1 if is_minimized else 0]
        scores = self.store.list_evaluations(study_id=study_id)
        rewards = [0.0, *(reward for score in scores for reward in score.details.get("rewards", ()))]
        return max(rewards) if is_minimized else min(rewards)

    def _environment(self) -> Environment:
        """Open the environment of the charter.

        Raises RunBroken if its digest is not the charter's.
        """
        opened = self.environments.open(self.charter.environment)
        if opened.digest != self.charter.environment_digest:
            raise RunBroken(
                f"the environment {opened.name} was changed since the study began: its scores could not be compared"
            )
        return opened

    @contextmanager
    def _program(self, run: Run, phase: str, url: str) -> Generator[Program]:
        """Yield the agent that plays for a run: that of its arm's program.

        It runs in a process of its own, and in a sandbox if it is foreign code.
        """
        experiment = self._experiment(run)
        code = experiment.program_code
        if code == load("program"):
            yield PLAIN
            return
        sandbox = None if experiment.author is Author.PACKAGE else self.sandbox
        with (
            place_program(code, self.folder(run.id) / phase, url, sandbox) as place,
            ProgramProcess(place, max_hung=MAX_HUNG) as program,
        ):
            yield program

    def record_score(
        self,
        run: Run,
        phase: str,
        split: str,
        result: Evaluation,
        *,
        version: int,
        details: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """Store a score with the reward of every attempt, and the counts of broken and repeated attempts.

        Raises ScoreIncomplete if the system broke an attempt for good, and RunBroken if other weights answered.
        """
        if result.failures or result.mean is None:
            first = result.failures[0].error if result.failures else "no reason given"
            total = result.n + len(result.failures)
            raise ScoreIncomplete(f"{len(result.failures)} of {total} {phase} attempts have no score: {first}")
        if result.weight_versions != (version,):
            raise RunBroken(f"{phase} episodes were sampled from versions {result.weight_versions}, expected {version}")
        cost = cost_of_attempts(result.receipts, broken=len(result.broken), repeated=len(result.repeats))
        self.store.record_evaluation(
            run.id,
            phase=phase,
            split=split,
            metric=self.charter.metric,
            weight_version=version,
            episodes=result.n,
            successes=result.successes,
            mean=result.mean,
            stderr=result.stderr or 0.0,
            evaluator_hash=self.evaluator_hash(split, explores=bool(run.rung)),
            details={
                **details,
                "temperature": EVAL_TEMPERATURE,
                **raw_rewards(result),
                COST: None if cost is None else cost_to_json(cost),
                "broken": len(result.broken),
                "repeated": len(result.repeats),
                "reasons": _counted((*(failure.error for failure in result.broken), *result.repeats)),
            },
        )

    def evaluator_hash(self, split: str, *, explores: bool = False) -> str:
        return evaluator_hash(self.charter, self._environment(), split, explores=explores)

    def _await_rest(self, client: SwarmClient, wait_s: float) -> None:
        """Wait until no batch is being trained.

        Raises RunBroken after `wait_s` seconds, or if the engine failed.
        """
        deadline = time.monotonic() + wait_s
        while (status := client.status()).state not in ("ROLLING", "COMPLETE"):
            self._check_stop()
            if status.state in ("FAILED", "OFFLINE") or time.monotonic() > deadline:
                raise RunBroken(f"the engine is {status.state}: {status.reason or 'it does not finish its step'}")
            time.sleep(REST_POLL_S)

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
        environment = self._environment()
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

    def _experiment(self, run: Run) -> Experiment:
        return next(item for item in self.store.list_experiments(run.study_id) if item.id == run.experiment_id)

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
            has_tokens = len(records) < TOKEN_SAMPLES
            samples = tuple(sample.model_dump(mode="json") for sample in detail.samples) if has_tokens else ()
            records.append(EpisodeSample(summary, messages, samples))
        self.store.record_episodes(run.id, records)

    def _keep_files(self, run: Run) -> None:
        for kind, name in (
            ("program", "program.py"),
            ("job", "job.yaml"),
            ("log", "train.log"),
            ("output", "work/program.log"),
        ):
            keep_file(self.store, run.study_id, self.folder(run.id) / name, kind, run_id=run.id)

    def _check_stop(self) -> None:
        if self.is_stopped():
            raise Drained


def evaluator_hash(charter: Charter, environment: Environment, split: str, *, explores: bool = False) -> str:
    """Return a hash of the way of measuring and its tasks.

    Two scores with the same hash were measured in the same way on the same tasks. Exploring runs have tasks of their
    own.
    """
    place = charter.tasks_of(split, explores=explores)
    tasks = islice(environment.tasks(Split(split)), place.start, place.stop)
    limits = {"attempt_calls": charter.attempt_calls, "attempt_tokens": charter.attempt_tokens}
    return hash_json(
        {
            "environment_name": environment.name,
            "environment": environment.digest,
            "split": split,
            "tasks": sha256("\n".join(item.task.task_id for item in tasks).encode()).hexdigest(),
            "temperature": EVAL_TEMPERATURE,
            "max_turns": environment.max_turns,
            "max_tokens": environment.max_tokens,
            "version": swarm.__version__,
            **{name: limit for name, limit in limits.items() if limit is not None},
        }
    )


def _counted(reasons: Iterable[str]) -> dict[str, int]:
    """Return how often each reason occurs, most frequent first."""
    return dict(Counter(reason[:MAX_REASON_CHARS] for reason in reasons).most_common(MAX_REASONS))


def raw_rewards(result: Evaluation) -> dict[str, list[Any]]:
    """Return three aligned lists with one entry per episode: its task, its reward, and whether it solved the task."""
    return {
        "tasks": [task_id for task_id, rewards in result.rewards.items() for _ in rewards],
        "rewards": [reward for rewards in result.rewards.values() for reward in rewards],
        "solved": [solved for flags in result.solved.values() for solved in flags],
    }


def keep_file(store: ExperimentStore, study_id: str, path: Path, kind: str, *, run_id: str | None = None) -> None:
    """Record a file of a study with its hash; a file that does not exist is left out."""
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
