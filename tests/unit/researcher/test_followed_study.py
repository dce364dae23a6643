"""What is read of a study while it runs: snapshots that follow it, and limits learned from its baseline."""

from __future__ import annotations

import pytest

from experiments_db import Experiment, ExperimentStatus, ExperimentStore, Run, RunStatus
from researcher.execution.early_stopping import StoppingLimits, learn_limits
from researcher.plan import Arm, Plan
from researcher.record.runs import Trial, list_trials, run_key
from researcher.study.overview import SnapshotReader, take_snapshot
from swarm.guard import KL

NAMES = ("a", "b", "c")


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


def test_snapshots_that_follow_a_study_are_those_of_a_first_look(store: ExperimentStore, study_id: str) -> None:
    add_arms(store, study_id, *NAMES)
    plan, reader = plan_of(*NAMES, seeds=2), SnapshotReader(store, study_id)
    document = {"arms": [{"name": name} for name in NAMES], "seeds": [0, 1], "rungs": {}}
    store.record_plan(study_id, 0, document)
    for trial in list_trials(store, study_id, plan):
        run = begin(store, trial)
        if trial.seed == 0:
            finish(store, run)
        followed, fresh = reader.read(), take_snapshot(store, study_id)
        assert [(view.run_id, view.status) for view in followed.runs] == [
            (view.run_id, view.status) for view in fresh.runs
        ]
        assert (followed.done, followed.planned) == (fresh.done, fresh.planned)
    assert (fresh.done, fresh.planned) == (3, 6)


def test_limits_learn_from_the_finished_runs_of_the_baseline(store: ExperimentStore, study_id: str) -> None:
    add_arms(store, study_id, "a", "b")
    assert learn_limits(store, study_id, StoppingLimits()) == StoppingLimits()
    runs = [begin(store, trial) for trial in list_trials(store, study_id, plan_of("a", "b", seeds=1))]
    for run, moved in zip(runs, (20.0, 90.0), strict=True):
        store.record_metrics(run.id, {1: {KL: moved}})
        finish(store, run)
    learned = learn_limits(store, study_id, StoppingLimits())
    assert learned.kl_limit == max(StoppingLimits().kl_limit, 2 * 20.0), "the second run is no baseline"
