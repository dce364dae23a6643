"""Which runs a plan still needs: trials of arm and seed, their attempts and their names.

Place in the flow: launch takes open trials, analyze reads finished ones, orphaned_runs.py sorts out what a
crash left behind.
Every answer is computed from the rows of the database, so it is the same in every process.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from experiments_db import Experiment, ExperimentStatus, ExperimentStore, Run, RunStatus
from researcher.servers.server_pool import PROJECT
from researcher.types import Plan
from swarm.job import build_job

TRAINING_SECONDS = "training/seconds"
"""Metric of a step: seconds from the end of the step before it, or from when the program was started, to its end. It
holds the episodes and the update, and no evaluation."""
MAX_SERVERS = 2
"""A failure of the system on so many servers, each of which answered, is no fault of a server."""
MAX_ON_ONE_SERVER = 4
"""The same where there is no other server to try."""
MAX_LOSSES = 10
"""Servers that go away under every attempt at the same run may go away because of it."""
FAILURE = "failure"
"""Kind of the diagnosis of a run that the system broke in any other way. Another attempt follows."""
SERVER_LOST = "server_lost"
"""Kind of the diagnosis of a run whose server went away: it says nothing of the run and is no failure of it."""

ENVIRONMENT = "environment"
"""Kind of the diagnosis of a run that ended because the environment failed: it says nothing of the arm."""
PROGRAM = "program"
"""Kind of the diagnosis of a run that its own program ended."""
UNSCORED = "unscored"
"""Kind of the diagnosis of a run whose score the system broke for good. Training it anew would let chance choose."""
OWN_DOING = frozenset({"not_finite", "overrun", "collapse", "kl_divergence", PROGRAM, "rejected"})
"""Kinds of diagnoses by which an arm fails, not the system that runs it. Such a run is never trained again: an arm that
could have another try by failing would choose among its runs."""


BUDGET = "budget"
"""Kind of the diagnosis of a run that was stopped because the study could not pay for it any longer."""


class TrialState(StrEnum):
    OPEN = "open"
    ACTIVE = "active"
    FINISHED = "finished"
    GIVEN_UP = "given_up"


@dataclass(frozen=True, slots=True)
class Trial:
    """One arm with one seed, and every attempt at it, oldest first."""

    experiment: Experiment
    seed: int
    runs: tuple[Run, ...]

    @property
    def name(self) -> str:
        return f"{self.experiment.name} seed {self.seed}"

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
        """Those by its own doing. One is enough to give the trial up."""
        return [run for run in self._failures if _kind(run) in OWN_DOING]

    @property
    def _system_failures(self) -> list[Run]:
        """Those of the system, once there are so many that it is more than one server's fault."""
        failed = [run for run in self._failures if _kind(run) not in OWN_DOING]
        is_final = any(not is_retried(run) for run in failed)
        on = Counter(run.server_url for run in failed)
        is_everywhere = len(on) >= MAX_SERVERS or max(on.values(), default=0) >= MAX_ON_ONE_SERVER
        return failed if is_final or is_everywhere else []

    @property
    def failed_on(self) -> frozenset[str]:
        """Addresses of the servers on which an attempt failed."""
        return frozenset(run.server_url for run in self._failures if run.server_url is not None)

    @property
    def finished(self) -> Run | None:
        return next((run for run in self.runs if run.status is RunStatus.FINISHED), None)

    @property
    def attempt(self) -> int:
        """Number of the next launch: a claimed one that never began, or a new one."""
        if self.runs and self.runs[-1].status is RunStatus.PLANNED:
            return self.runs[-1].attempt
        return max((run.attempt for run in self.runs), default=0) + 1

    @property
    def own_failure(self) -> str:
        """How the arm failed by its own doing, ended early or without a score; empty if it did not.

        Where it was given up because the system failed, nobody knows what the arm would have done.
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
        """What is said of a trial whose last attempt the budget stopped and that no other has followed; else empty."""
        last = self.runs[-1] if self.runs else None
        is_stopped = last is not None and last.status is RunStatus.STOPPED and _kind(last) == BUDGET
        return last.exit_reason or BUDGET if last is not None and is_stopped else ""

    @property
    def failure(self) -> str:
        """Why it was given up, for people."""
        reasons = [run.exit_reason or "no reason recorded" for run in self._failures or self._losses]
        return reasons[-1] if reasons else "never run"


def is_retried(run: Run) -> bool:
    """Whether this failure was the system's, so that another attempt makes sense."""
    return bool((run.diagnosis or {}).get("is_retried", True))


def _kind(run: Run) -> str:
    return str((run.diagnosis or {}).get("kind", ""))


def list_trials(store: ExperimentStore, study_id: str, plan: Plan) -> list[Trial]:
    """Every arm of the plan that may run, with every seed; seed by seed, so that a cut leaves whole blocks."""
    by_name = {experiment.name: experiment for experiment in store.list_experiments(study_id)}
    wanted = [by_name[arm.name] for arm in plan.arms if arm.name in by_name]
    ready = [experiment for experiment in wanted if experiment.status is ExperimentStatus.READY]
    runs = _group(store.list_runs(study_id=study_id))
    return [
        Trial(experiment, seed, tuple(runs.get((experiment.id, seed), ())))
        for seed in plan.seeds
        for experiment in ready
    ]


def list_all_trials(store: ExperimentStore, study_id: str) -> list[Trial]:
    """Every arm and seed that was ever claimed."""
    experiments = {experiment.id: experiment for experiment in store.list_experiments(study_id)}
    runs = _group(store.list_runs(study_id=study_id))
    return [Trial(experiments[key[0]], key[1], tuple(attempts)) for key, attempts in sorted(runs.items())]


def run_key(study_id: str, arm: str, seed: int, attempt: int) -> str:
    """The idempotency key of one attempt, known before the launch and the same in every process."""
    return f"{study_id}/{trial_key(arm, seed)}/{attempt}"


def trial_key(arm: str, seed: int) -> str:
    """Under which the budget is charged for a trial, once for all attempts at it."""
    return f"{arm}/{seed}"


def job_of(study_id: str, experiment: Experiment, seed: int, attempt: int) -> dict[str, Any]:
    """The arm's settings with what only the evaluator sets: names and seed."""
    name = f"{study_id}/{plain_name(experiment.name)}/seed-{seed}/attempt-{attempt}"
    return {**experiment.job, "project_name": PROJECT, "experiment_name": name[-200:], "seed": seed}


def plain_name(name: str) -> str:
    """A name for folders and servers: letters, digits and `_ . + -`."""
    return re.sub(r"[^\w.+-]+", "_", name, flags=re.ASCII)[:80] or "arm"


def engine_of(job: Mapping[str, Any]) -> str:
    return build_job(dict(job)).chosen_engine


def gpus_of(job: Mapping[str, Any]) -> int:
    return build_job(dict(job)).resolve().n_gpu


def total_steps(job: Mapping[str, Any]) -> int:
    return int(job["total_steps"])


def _group(runs: Iterable[Run]) -> dict[tuple[str, int], Sequence[Run]]:
    grouped: dict[tuple[str, int], list[Run]] = {}
    for run in runs:
        grouped.setdefault((run.experiment_id, run.seed), []).append(run)
    return {key: sorted(attempts, key=lambda run: run.attempt) for key, attempts in grouped.items()}
