"""What is read of a study while it runs: limits that are learned from its baseline."""

from __future__ import annotations

import pytest

from experiments_db import Experiment, ExperimentStatus, ExperimentStore, Run, RunStatus
from researcher.execution.early_stopping import StoppingLimits, learn_limits
from researcher.plan import Arm, Plan
from researcher.record.runs import Trial, list_trials, run_key
from swarm.guard import KL


@pytest.fixture
def study_id(store: ExperimentStore) -> str:
    return store.create_study("t", planner="rules").id


def add_arms(store: ExperimentStore, study_id: str, *names: str) -> list[Experiment]:
    made = [store.create_experiment(study_id, name, factors={}, job={}, is_baseline=name == "a") for name in names]
    return [store.revise_experiment(arm.id, status=ExperimentStatus.READY) for arm in made]


def plan_of(*names: str, seeds: int, iteration: int = 0) -> Plan:
    return Plan(iteration, (), tuple(Arm(name, {}, {}, "") for name in names), tuple(range(seeds)), "")


def begin(store: ExperimentStore, trial: Trial) -> Run:
    run = store.claim_run(
        trial.experiment.id,
        trial.seed,
        run_key(trial.experiment.study_id, trial.experiment.name, trial.seed, trial.attempt),
        attempt=trial.attempt,
    )
    return store.update_run(run.id, status=RunStatus.LAUNCHING)


def finish(store: ExperimentStore, run: Run) -> None:
    for status in (RunStatus.RUNNING, RunStatus.EVALUATING, RunStatus.FINISHED):
        store.update_run(run.id, status=status)


def test_limits_learn_from_the_finished_runs_of_the_baseline(store: ExperimentStore, study_id: str) -> None:
    add_arms(store, study_id, "a", "b")
    assert learn_limits(store, study_id, StoppingLimits()) == StoppingLimits()
    runs = [begin(store, trial) for trial in list_trials(store, study_id, plan_of("a", "b", seeds=1))]
    for run, moved in zip(runs, (20.0, 90.0), strict=True):
        store.record_metrics(run.id, {1: {KL: moved}})
        finish(store, run)
    learned = learn_limits(store, study_id, StoppingLimits())
    assert learned.kl_limit == max(StoppingLimits().kl_limit, 2 * 20.0), "the second run is no baseline"
