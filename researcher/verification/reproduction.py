"""The reproduction of a run: trained again from its record, scored by the same evaluator and compared.

A repeat differs from the record by the noise of two evaluations and, unless its curves are the same bit for bit, by the
noise of training. The interval around the recorded score covers 95 % of such differences: its variance is that of both
evaluations, and twice the variance between the seeds of the arm if training differed.
"""

from __future__ import annotations

import math
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import stdev
from typing import Any

from experiments_db import Author, DetailedEvaluation, Experiment, ExperimentStore, Run, RunStatus, open_store
from researcher.errors import ResearchError, ServerProblem
from researcher.evaluation.evaluator import Evaluator
from researcher.execution.early_stopping import TIME_LIMITS
from researcher.execution.environments import StudyEnvironments
from researcher.phases import BASE, ENDED_AT, FINAL
from researcher.record.runs import engine_of, job_of, total_steps
from researcher.servers.server import LeaseHolder
from researcher.servers.server_pool import ServerPool
from researcher.verification.record import StudyRecord
from swarm import SwarmClient
from swarm.guard import REWARD
from swarm.processes import Child, tail
from swarm.sandbox import Sandbox, choose_sandbox

Z = 1.959964
"""The number of standard deviations around the mean that covers 95 % of a normal distribution."""

POLL_S = 1.0
OWN_NAMES = ("experiment_name", "project_name", "logger", "save_path")
"""The settings that name a job, which differ between a run and its repeat."""


@dataclass(frozen=True, slots=True)
class Score:
    """One score: its mean, the standard error over episodes, and the mean before training."""

    before: float | None
    after: float
    stderr: float


@dataclass(frozen=True, slots=True)
class Reproduction:
    """The comparison of a repeat with its record.

    The repeated score should lie between `low` and `high`. `is_same_training` says that every training reward was the
    same to the last bit. `is_same_scoring` says that every episode of the evaluation was the same. `differing` lists
    other differences: versions, settings, the number of steps.
    """

    run_id: str
    study_id: str
    arm: str
    seed: int
    recorded: Score
    repeated: Score
    low: float
    high: float
    is_same_training: bool
    is_same_scoring: bool
    differing: tuple[str, ...]
    seconds: float
    folder: str

    @property
    def is_within(self) -> bool:
        return self.low <= self.repeated.after <= self.high

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "is_within": self.is_within}

    def lines(self) -> list[str]:
        """Return the comparison in lines for people."""
        training = "the same to the last bit" if self.is_same_training else "not the same bit by bit"
        scoring = "the same in every episode" if self.is_same_scoring else "other episodes than in the record"
        verdict = "within" if self.is_within else "OUTSIDE"
        return [
            f"run {self.run_id}: {self.arm}, seed {self.seed}, trained again in {self.seconds:.0f} s",
            f"recorded: {_shown(self.recorded)}",
            f"repeated: {_shown(self.repeated)}",
            f"the repeat is {verdict} the interval {self.low:.3f} to {self.high:.3f}",
            f"training rewards: {training}; evaluation: {scoring}",
            *(f"differs: {line}" for line in self.differing),
            f"files: {self.folder}",
        ]


def reproduce(
    store: ExperimentStore,
    run_id: str,
    home: Path,
    *,
    server: str | None = None,
    unsafe_no_sandbox: bool = False,
    on_progress: Callable[[str], None] = lambda line: None,
) -> Reproduction:
    """Train a run again, score it and return the comparison with its record.

    Raises RecordNotFound for no such run, ResearchError for a run without a score or a repeat that fails,
    ServerProblem, SandboxUnavailable or SwarmError.
    """
    run = store.get_run(run_id)
    record = _Record(store, run, home)
    sandbox = choose_sandbox(unsafe_no_sandbox) if record.is_foreign else None
    folder = (home / "reproductions" / run_id).resolve()
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    pool = ServerPool(
        urls=(server,) if server else (),
        local=0 if server else 1,
        home=folder / "servers",
        holder=LeaseHolder(f"reproduction of {run_id}"),
        own_token=None if sandbox is None else secrets.token_urlsafe(32),
    )
    began = time.monotonic()
    with open_store(folder / "research.db") as scratch, closing(StudyEnvironments()) as environments:
        try:
            pool.start()
            repeat = _Repeat(record, scratch, folder, pool, environments, sandbox, on_progress)
            repeated = repeat.carry_out()
        finally:
            pool.stop()
        return _compare(record, scratch, repeated, time.monotonic() - began, folder)


class _Record(StudyRecord):
    """The record of the run that is trained again."""

    def __init__(self, store: ExperimentStore, run: Run, home: Path) -> None:
        super().__init__(store, run.study_id, home)
        base, final = (store.find_evaluation(run.id, phase, self.charter.search_split) for phase in (BASE, FINAL))
        if run.status is not RunStatus.FINISHED or final is None:
            raise ResearchError(f"run {run.id} is {run.status} and has no score to compare a repeat with")
        self.run, self.base, self.final = run, base, final
        self.experiment = self.arm_of(run.id)
        model = Path(str(self.experiment.job.get("model", "")))
        if model.is_absolute() and not model.exists():
            raise ResearchError(
                f"run {run.id} starts from {model}, which is not there: it was removed, or lies elsewhere"
            )

    @property
    def is_foreign(self) -> bool:
        """True if a language model wrote the program of the arm, or that of the baseline, which may play its scores."""
        arms = (item for item in self.experiments.values() if item.is_baseline or item.id == self.experiment.id)
        return any(item.author is Author.LANGUAGE_MODEL for item in arms)

    @property
    def steps(self) -> int:
        """The number of steps of the run: all of its job, unless it was ended early."""
        return self.run.final_weight_version or total_steps(self.experiment.job)


@dataclass(frozen=True, slots=True)
class _Repeat:
    record: _Record
    store: ExperimentStore
    folder: Path
    pool: ServerPool
    environments: StudyEnvironments
    sandbox: Sandbox | None
    report: Callable[[str], None]

    def carry_out(self) -> Run:
        """Train and score the repeat, and return it as in its own database."""
        experiment, run = self._prepare_rows()
        slot = self.pool.take()
        if slot is None or slot.url is None:
            raise ServerProblem("the server does not answer")
        evaluator = Evaluator(
            store=self.store,
            charter=self.record.charter,
            home=self.folder / "study",
            sandbox=self.sandbox,
            environments=self.environments,
            connect=self.pool.connect,
            token_of=self.pool.token_of,
            is_stopped=lambda: False,
        )
        is_trusted = experiment.author is Author.PACKAGE
        child = evaluator.prepare(run, experiment, slot.url, is_trusted=is_trusted)
        try:
            run = self._end_as_the_record(slot.url, run)
            self._await_steps(slot.url, child, run, evaluator)
            run = self.store.update_run(run.id, status=RunStatus.EVALUATING)
            self.report("scoring")
            evaluator.measure(run, slot.url, child)
        finally:
            child.stop()
        return self.store.update_run(run.id, status=RunStatus.FINISHED)

    def _prepare_rows(self) -> tuple[Experiment, Run]:
        """Create the study, its charter, the baseline and the arm in the repeat's own database.

        The baseline's agent may play the scores of the arm.
        """
        known = self.record.experiment
        study = self.store.create_study(self.record.study.topic, planner=self.record.study.planner)
        self.store.freeze_charter(study.id, dict(self.record.stored_charter.document))
        others = self.record.store.list_experiments(self.record.study.id)
        for other in others:
            if other.is_baseline and other.id != known.id:
                self._create(study.id, other)
        experiment = self._create(study.id, known)
        seed, rung = self.record.run.seed, self.record.run.rung
        # A run that went on from a checkpoint is repeated from the start.
        job = job_of(study.id, experiment, seed, 1, rung)
        run = self.store.claim_run(experiment.id, seed, study.id, rung=rung, job=job)
        return experiment, self.store.update_run(run.id, status=RunStatus.LAUNCHING)

    def _create(self, study_id: str, known: Experiment) -> Experiment:
        return self.store.create_experiment(
            study_id,
            known.name,
            factors=known.factors,
            job=known.job,
            program_code=known.program_code,
            train_environment=known.train_environment,
            author=known.author,
            is_baseline=known.is_baseline,
        )

    def _end_as_the_record(self, url: str, run: Run) -> Run:
        """Shorten the repeat to the steps of the record if that run was ended early."""
        if self.record.steps == total_steps(run.job):
            return run
        if not run.rung:
            with self.pool.connect(url) as client:
                client.change_job({"total_steps": self.record.steps})
        external = {**self.store.get_run(run.id).external_ids, ENDED_AT: self.record.steps}
        return self.store.update_run(run.id, external_ids=external)

    def _await_steps(self, url: str, child: Child, run: Run, evaluator: Evaluator) -> None:
        """Wait until the repeat has trained as long as the record, and keep its curves.

        Raises ResearchError if the engine or the client fails, or if the repeat takes too long.
        """
        deadline = time.monotonic() + TIME_LIMITS[engine_of(self.record.experiment.job)].run_s
        with self.pool.connect(url) as client:
            copied = 0
            while (status := client.status()).step < self.record.steps:
                copied = self._copy_curves(client, run, copied)
                log = evaluator.folder(run.id) / "train.log"
                if status.state in ("FAILED", "OFFLINE"):
                    raise ResearchError(f"the engine is {status.state} at step {status.step}: {status.reason}")
                if (code := child.poll()) is not None and code != 0:
                    words = " ".join(tail(log).split())[-300:]
                    raise ResearchError(f"the client ended with exit code {code} at step {status.step}: {words}")
                if time.monotonic() > deadline:
                    raise ResearchError(f"the repeat is at step {status.step} and takes too long")
                self.report(f"step {status.step} of {self.record.steps}")
                time.sleep(POLL_S)
            self._copy_curves(client, run, copied)

    def _copy_curves(self, client: SwarmClient, run: Run, after: int) -> int:
        points = client.metrics(after)
        if points:
            self.store.record_metrics(run.id, {point.step: point.metrics for point in points})
        return points[-1].step if points else after


def _compare(record: _Record, scratch: ExperimentStore, repeated: Run, seconds: float, folder: Path) -> Reproduction:
    split = record.charter.search_split
    base, final = (scratch.find_evaluation(repeated.id, phase, split) for phase in (BASE, FINAL))
    assert final is not None, "a repeat that was measured has a score"
    is_same_training = _curve(record.store, record.run.id) == _curve(scratch, repeated.id)
    variance = record.final.stderr**2 + final.stderr**2
    if not is_same_training:
        variance += 2 * _spread_of_seeds(record) ** 2
    half_width = Z * math.sqrt(variance) + 1e-12
    return Reproduction(
        run_id=record.run.id,
        study_id=record.run.study_id,
        arm=record.experiment.name,
        seed=record.run.seed,
        recorded=Score(record.base and record.base.mean, record.final.mean, record.final.stderr),
        repeated=Score(base and base.mean, final.mean, final.stderr),
        low=record.final.mean - half_width,
        high=record.final.mean + half_width,
        is_same_training=is_same_training,
        is_same_scoring=_by_task(record.final) == _by_task(final),
        differing=tuple(_differing(record, repeated, final)),
        seconds=seconds,
        folder=str(folder),
    )


def _curve(store: ExperimentStore, run_id: str) -> list[tuple[int, float | None]]:
    return [(point.step, point.value) for point in store.list_metrics([run_id], names=[REWARD])]


def _spread_of_seeds(record: _Record) -> float:
    """Return the standard deviation of the arm's scores over its seeds; 0 for fewer than two scores."""
    finished = [
        run.id
        for run in record.runs.values()
        if (run.experiment_id, run.status, run.rung) == (record.experiment.id, RunStatus.FINISHED, record.run.rung)
    ]
    scores = record.store.list_evaluations(run_ids=finished, phase=FINAL, split=record.charter.search_split)
    return stdev(item.mean for item in scores) if len(scores) > 1 else 0.0


def _by_task(evaluation: DetailedEvaluation) -> list[tuple[str, float]]:
    """Return the rewards with their tasks, sorted, because episodes end in another order each time."""
    details = evaluation.details
    return sorted(zip(details.get("tasks", ()), details.get("rewards", ()), strict=False))


def _differing(record: _Record, repeated: Run, final: DetailedEvaluation) -> Iterator[str]:
    for name in sorted({*record.run.environment, *repeated.environment}):
        was, is_now = record.run.environment.get(name), repeated.environment.get(name)
        if was != is_now:
            yield f"{name} was {was} and is {is_now}"
    for name in sorted({*record.run.job, *repeated.job} - {*OWN_NAMES}):
        was, is_now = record.run.job.get(name), repeated.job.get(name)
        if was != is_now:
            yield f"the job's {name} was {was} and is {is_now}"
    if record.run.final_weight_version != repeated.final_weight_version:
        yield f"trained for {repeated.final_weight_version} steps, the record for {record.run.final_weight_version}"
    if record.final.evaluator_hash != final.evaluator_hash:
        yield "the score was measured by another version, on other tasks, or in another way"


def _shown(score: Score) -> str:
    before = "" if score.before is None else f"{score.before:.3f} -> "
    return f"{before}{score.after:.3f} (standard error {score.stderr:.3f})"
