"""The runs of a study: trials of an arm, a seed and a rung, their attempts, names, diagnoses and costs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from experiments_db import Experiment, ExperimentStatus, ExperimentStore, Run, RunStatus
from researcher.phases import FROM_RUNG, RESUME_FROM
from researcher.plan import Plan
from swarm.job import build_job

PROJECT = "research"
"""Project name of every job of the researcher; a server busy with another project belongs to somebody else."""
MAX_SERVERS = 2
"""A trial that fails on so many servers, each of which answered, does not fail because of a server."""
MAX_ON_ONE_SERVER = 4
"""The same limit for failures on one server, where there is no other to try."""
MAX_LOSSES = 10
"""A run may be the cause if so many attempts at it lost their server."""
STALL = "stall"
"""Kind of the diagnosis of a run that has made no step for too long."""
FAILURE = "failure"
"""Kind of the diagnosis of a run that the system broke in any other way; another attempt follows."""
SERVER_LOST = "server_lost"
"""Kind of the diagnosis of a run whose server went away, which is no failure of the run."""

ENVIRONMENT = "environment"
"""Kind of the diagnosis of a run that ended because the environment failed, which says nothing about the arm."""
PROGRAM = "program"
"""Kind of the diagnosis of a run that its own program ended."""
UNSCORED = "unscored"
"""Kind of the diagnosis of a run that has no score because the system failed for good.

The run is not trained again, because chance would then choose between the two trainings.
"""
OWN_DOING = frozenset({"not_finite", "overrun", "collapse", "kl_divergence", PROGRAM, "rejected"})
"""Kinds of diagnosis by which the arm fails, and not the system.

Such a run is never trained again, because an arm could then choose among its runs by failing.
"""

BUDGET = "budget"
"""Kind of the diagnosis of a run that was stopped because the study could no longer pay for it."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A reason to end a run early.

    `is_scored`: the weights trained so far are scored as the arm's result. `is_retried`: the system failed, not the
    arm, so another attempt follows.
    """

    kind: str
    sentence: str
    is_scored: bool
    is_retried: bool

    def as_recorded(self) -> dict[str, Any]:
        """Return the form in which the row of a run stores it."""
        return {"kind": self.kind, "sentence": self.sentence, "is_retried": self.is_retried}

    @classmethod
    def on_record(cls, recorded: Mapping[str, Any]) -> Diagnosis:
        """Return the diagnosis of a run whose training was ended in order to be scored.

        Only such a diagnosis is stored before its run is over.
        """
        return cls(str(recorded["kind"]), str(recorded["sentence"]), is_scored=True, is_retried=False)


class TrialState(StrEnum):
    OPEN = "open"
    ACTIVE = "active"
    FINISHED = "finished"
    GIVEN_UP = "given_up"


@dataclass(frozen=True, slots=True)
class Trial:
    """One arm with one seed, and every attempt at it, oldest first.

    `rung` is the step at which an exploring run ends; 0 is the end of the job.
    """

    experiment: Experiment
    seed: int
    runs: tuple[Run, ...]
    rung: int = 0

    @property
    def name(self) -> str:
        return f"{self.experiment.name} seed {self.seed}{f' to step {self.rung}' if self.rung else ''}"

    @property
    def key(self) -> str:
        """The key under which the budget charges the trial, once for all its attempts."""
        return trial_key(self.experiment.name, self.seed, self.rung)

    @property
    def state(self) -> TrialState:
        if self.finished is not None:
            return TrialState.FINISHED
        if any(not run.status.is_over and run.status is not RunStatus.PLANNED for run in self.runs):
            return TrialState.ACTIVE
        if self._own_failures or self._system_failures or len(self._losses) >= MAX_LOSSES:
            return TrialState.GIVEN_UP
        return TrialState.OPEN

    @property
    def _failures(self) -> list[Run]:
        return [run for run in self.runs if run.status is RunStatus.FAILED]

    @property
    def _losses(self) -> list[Run]:
        return [run for run in self.runs if run.status is RunStatus.STOPPED and _kind(run) == SERVER_LOST]

    @property
    def _own_failures(self) -> list[Run]:
        """The attempts that failed through the arm itself. One is enough to give the trial up."""
        return [run for run in self._failures if _kind(run) in OWN_DOING]

    @property
    def _system_failures(self) -> list[Run]:
        """The attempts that failed through the system; empty until there are too many to blame one server."""
        failed = [run for run in self._failures if _kind(run) not in OWN_DOING]
        is_final = any(not is_retried(run) for run in failed)
        on = Counter(run.server_url for run in failed)
        is_everywhere = len(on) >= MAX_SERVERS or max(on.values(), default=0) >= MAX_ON_ONE_SERVER
        return failed if is_final or is_everywhere else []

    @property
    def failed_on(self) -> frozenset[str]:
        """The addresses of the servers on which an attempt failed."""
        return frozenset(run.server_url for run in self._failures if run.server_url is not None)

    @property
    def finished(self) -> Run | None:
        return next((run for run in self.runs if run.status is RunStatus.FINISHED), None)

    @property
    def attempt(self) -> int:
        """The number of the next launch: that of a claimed run that never began, or a new one."""
        if self.runs and self.runs[-1].status is RunStatus.PLANNED:
            return self.runs[-1].attempt
        return max((run.attempt for run in self.runs), default=0) + 1

    @property
    def own_failure(self) -> str:
        """The kinds of failure by which the arm itself failed, ended early or without a score; empty if it did not.

        If the trial was given up because the system failed, nobody knows what the arm would have done.
        """
        if self.finished is not None:
            kinds = {_kind(self.finished)}
        elif self.state is TrialState.GIVEN_UP:
            kinds = {_kind(run) for run in self._own_failures}
        else:
            return ""
        return " and ".join(sorted(kinds)) if kinds <= OWN_DOING else ""

    @property
    def budget_stop(self) -> str:
        """The reason for which the budget stopped the last attempt; empty if it did not."""
        last = self.runs[-1] if self.runs else None
        is_stopped = last is not None and last.status is RunStatus.STOPPED and _kind(last) == BUDGET
        return last.exit_reason or BUDGET if last is not None and is_stopped else ""

    @property
    def failure(self) -> str:
        """The reason, for people, why the trial was given up."""
        reasons = [run.exit_reason or "no reason recorded" for run in self._failures or self._losses]
        return reasons[-1] if reasons else "never run"


def is_retried(run: Run) -> bool:
    """Return whether the system caused this failure, so that another attempt makes sense."""
    return bool((run.diagnosis or {}).get("is_retried", True))


def _kind(run: Run) -> str:
    return str((run.diagnosis or {}).get("kind", ""))


def list_trials(store: ExperimentStore, study_id: str, plan: Plan) -> list[Trial]:
    """Return a trial for every ready arm of the plan with every seed, up to the arm's rung if the plan has one.

    They are in order of the seeds, so that an early end leaves whole blocks of arms.
    """
    by_name = {experiment.name: experiment for experiment in store.list_experiments(study_id)}
    wanted = [by_name[arm.name] for arm in plan.arms if arm.name in by_name]
    ready = [experiment for experiment in wanted if experiment.status is ExperimentStatus.READY]
    runs = _group(run for experiment in ready for run in store.list_runs(experiment_id=experiment.id))
    return [
        Trial(experiment, seed, tuple(runs.get((experiment.id, seed, rung), ())), rung)
        for seed in plan.seeds
        for experiment in ready
        for rung in (plan.rungs.get(experiment.name, 0),)
    ]


def list_all_trials(store: ExperimentStore, study_id: str) -> list[Trial]:
    """Return every trial that was ever claimed."""
    experiments = {experiment.id: experiment for experiment in store.list_experiments(study_id)}
    return group_trials(experiments, store.list_runs(study_id=study_id))


def group_trials(arms: Mapping[str, Experiment], runs: Iterable[Run]) -> list[Trial]:
    """Return the trials that runs belong to; `arms` are by id."""
    return [
        Trial(arms[arm], seed, tuple(attempts), rung) for (arm, seed, rung), attempts in sorted(_group(runs).items())
    ]


def run_key(study_id: str, arm: str, seed: int, attempt: int, rung: int = 0) -> str:
    """Return the idempotency key of one attempt, known before the launch and the same in every process."""
    return f"{study_id}/{trial_key(arm, seed, rung)}/{attempt}"


def trial_key(arm: str, seed: int, rung: int = 0) -> str:
    """Return the key under which the budget charges a trial, once for all its attempts."""
    return f"{arm}/{seed}/rung-{rung}" if rung else f"{arm}/{seed}"


def job_of(study_id: str, experiment: Experiment, seed: int, attempt: int, rung: int = 0) -> dict[str, Any]:
    """Return the arm's settings with names and seed, which only the evaluator sets."""
    place = f"seed-{seed}/rung-{rung}" if rung else f"seed-{seed}"
    name = f"{study_id}/{plain_name(experiment.name)}/{place}/attempt-{attempt}"
    return {**experiment.job, "project_name": PROJECT, "experiment_name": name[-200:], "seed": seed}


def job_of_run(run: Run, experiment: Experiment) -> dict[str, Any]:
    """Return the job of a claimed run, with the checkpoint that it goes on from if there is one."""
    job = job_of(run.study_id, experiment, run.seed, run.attempt, run.rung)
    checkpoint = run.job.get(RESUME_FROM)
    return job if checkpoint is None else {**job, RESUME_FROM: checkpoint}


def plain_name(name: str) -> str:
    """Return a name for folders and servers, of letters, digits and `_ . + -`."""
    return re.sub(r"[^\w.+-]+", "_", name, flags=re.ASCII)[:80] or "arm"


def engine_of(job: Mapping[str, Any]) -> str:
    return build_job(dict(job)).chosen_engine


def gpus_of(job: Mapping[str, Any]) -> int:
    return build_job(dict(job)).resolve().n_gpu


def total_steps(job: Mapping[str, Any]) -> int:
    return int(job["total_steps"])


def steps_at(share: float, total: int) -> int:
    """Return the step at which a part of the training ends, at least 1."""
    return max(1, round(share * total))


def shares_at(rungs: Sequence[float], total: int, step: int) -> tuple[float, ...]:
    """Return the parts of the full training that end at a step; in a short training there are several."""
    return tuple(share for share in rungs if steps_at(share, total) == step)


def cost_of(run: Run, experiment: Experiment) -> float:
    """Return the full runs that a run counts as; an exploring run counts as the part that it trains itself."""
    if not run.rung:
        return 1.0
    return (run.rung - int(run.external_ids.get(FROM_RUNG, 0))) / total_steps(experiment.job)


def _group(runs: Iterable[Run]) -> dict[tuple[str, int, int], Sequence[Run]]:
    grouped: dict[tuple[str, int, int], list[Run]] = {}
    for run in runs:
        grouped.setdefault((run.experiment_id, run.seed, run.rung), []).append(run)
    return {key: sorted(attempts, key=lambda run: run.attempt) for key, attempts in grouped.items()}
