"""Trials of arm and seed: which are open, under way, finished or given up, and what their next attempt is called."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from experiments_db import Experiment, ExperimentStatus, ExperimentStore, Run, RunStatus
from researcher.execution.background import BackgroundTasks
from researcher.execution.early_stopping import EarlyStopping, StoppingLimits
from researcher.loop.deps import ActiveRun, ActiveRuns, Deps, Phase
from researcher.loop.outages import lose, stop_over_budget
from researcher.plan import Arm, Plan
from researcher.record.log import StudyLog
from researcher.record.runs import (
    MAX_LOSSES,
    MAX_ON_ONE_SERVER,
    SERVER_LOST,
    Diagnosis,
    TrialState,
    job_of,
    list_all_trials,
    list_trials,
    plain_name,
    run_key,
)
from researcher.servers.server_pool import Slot


@pytest.fixture
def arm(store: ExperimentStore) -> Experiment:
    study = store.create_study("t", planner="rules")
    created = store.create_experiment(study.id, "lr=0.1", factors={"lr": 0.1}, job={"lr": 0.1, "total_steps": 3})
    return store.revise_experiment(created.id, status=ExperimentStatus.READY)


def _plan(*arms: str, seeds: tuple[int, ...] = (0,)) -> Plan:
    return Plan(0, (), tuple(Arm(name, {}, {}, "") for name in arms), seeds, "")


def _attempt(
    store: ExperimentStore,
    arm: Experiment,
    *,
    moves: tuple[RunStatus, ...],
    retried: bool = True,
    kind: str = "failure",
    url: str | None = None,
) -> Run:
    trial = list_trials(store, arm.study_id, _plan(arm.name))[0]
    run = store.claim_run(
        arm.id, 0, run_key(arm.study_id, arm.name, trial.seed, trial.attempt), attempt=trial.attempt, server_url=url
    )
    for status in moves:
        explains_itself = status in (RunStatus.FAILED, RunStatus.STOPPED)
        diagnosis = {"kind": kind, "is_retried": retried} if explains_itself else None
        run = store.update_run(run.id, status=status, diagnosis=diagnosis, exit_reason="because")
    return run


TRAINING = (RunStatus.LAUNCHING, RunStatus.RUNNING)
FAILED = (*TRAINING, RunStatus.FAILED)
FINISHED = (*TRAINING, RunStatus.EVALUATING, RunStatus.FINISHED)
INTERRUPTED = (*TRAINING, RunStatus.STOPPED)


@pytest.mark.parametrize(
    ("attempts", "state", "next_attempt"),
    [
        ([], TrialState.OPEN, 1),
        ([()], TrialState.OPEN, 1),
        ([TRAINING], TrialState.ACTIVE, 2),
        ([FAILED], TrialState.OPEN, 2),
        ([INTERRUPTED, INTERRUPTED, FAILED], TrialState.OPEN, 4),
        ([FAILED, FINISHED], TrialState.FINISHED, 3),
    ],
)
def test_state_of_a_trial_follows_from_its_attempts(
    store: ExperimentStore,
    arm: Experiment,
    attempts: list[tuple[RunStatus, ...]],
    state: TrialState,
    next_attempt: int,
) -> None:
    for moves in attempts:
        _attempt(store, arm, moves=moves)

    trial = list_trials(store, arm.study_id, _plan(arm.name))[0]

    assert (trial.state, trial.attempt) == (state, next_attempt)


@pytest.mark.parametrize(
    ("kind", "urls", "state"),
    [
        ("program", "a", TrialState.GIVEN_UP),
        ("failure", "a" * (MAX_ON_ONE_SERVER - 1), TrialState.OPEN),
        ("failure", "a" * MAX_ON_ONE_SERVER, TrialState.GIVEN_UP),
        ("failure", "ab", TrialState.GIVEN_UP),
    ],
)
def test_arms_own_failures_count_at_once_and_those_of_the_system_where_no_server_is_at_fault(
    store: ExperimentStore, arm: Experiment, kind: str, urls: str, state: TrialState
) -> None:
    for url in urls:
        _attempt(store, arm, moves=FAILED, kind=kind, url=url)

    trial = list_trials(store, arm.study_id, _plan(arm.name))[0]

    assert (trial.state, trial.failed_on) == (state, frozenset(urls))
    assert trial.own_failure == ("program" if kind == "program" and state is TrialState.GIVEN_UP else "")


def test_lost_servers_use_up_no_attempt_but_not_for_ever(store: ExperimentStore, arm: Experiment) -> None:
    _attempt(store, arm, moves=FAILED, kind="failure", url="a")
    for _ in range(MAX_LOSSES - 1):
        _attempt(store, arm, moves=INTERRUPTED, kind=SERVER_LOST, url="a")
    assert list_trials(store, arm.study_id, _plan(arm.name))[0].state is TrialState.OPEN

    _attempt(store, arm, moves=INTERRUPTED, kind=SERVER_LOST, url="a")

    assert list_trials(store, arm.study_id, _plan(arm.name))[0].state is TrialState.GIVEN_UP


def test_failure_that_is_the_arms_own_is_not_tried_again(store: ExperimentStore, arm: Experiment) -> None:
    _attempt(store, arm, moves=FAILED, retried=False)

    trial = list_trials(store, arm.study_id, _plan(arm.name))[0]

    assert trial.state is TrialState.GIVEN_UP
    assert trial.failure == "because"


def test_trials_go_seed_by_seed_and_leave_out_rejected_arms(store: ExperimentStore, arm: Experiment) -> None:
    other = store.create_experiment(arm.study_id, "b", factors={}, job={})
    store.revise_experiment(other.id, status=ExperimentStatus.READY)
    bad = store.create_experiment(arm.study_id, "bad", factors={}, job={})
    store.revise_experiment(bad.id, status=ExperimentStatus.INVALID)

    trials = list_trials(store, arm.study_id, _plan(arm.name, "b", "bad", seeds=(0, 1)))

    assert [trial.name for trial in trials] == ["lr=0.1 seed 0", "b seed 0", "lr=0.1 seed 1", "b seed 1"]
    assert list_all_trials(store, arm.study_id) == []


def test_only_the_evaluator_sets_names_and_seed(arm: Experiment) -> None:
    job = job_of(arm.study_id, arm, seed=7, attempt=2)

    assert job["seed"] == 7 and job["lr"] == 0.1
    assert job["experiment_name"] == f"{arm.study_id}/lr_0.1/seed-7/attempt-2"


@pytest.mark.parametrize(("name", "plain"), [("lr=0.1 kl", "lr_0.1_kl"), ("../../etc", ".._.._etc"), ("", "arm")])
def test_plain_names_have_no_separators(name: str, plain: str) -> None:
    assert plain_name(name) == plain


def _deps(store: ExperimentStore, study_id: str) -> Deps:
    ledger = SimpleNamespace(find_exhausted=lambda: "2 h are used", end_run=print)
    return cast(
        Deps,
        SimpleNamespace(
            store=store,
            log=StudyLog(store, study_id),
            ledger=ledger,
            background=BackgroundTasks(1),
            active_runs=ActiveRuns(),
            pool=SimpleNamespace(give_back=print),
        ),
    )


@pytest.mark.parametrize("give_up", [stop_over_budget, lambda deps: lose(deps, *deps.active_runs, "it left")])
@pytest.mark.parametrize(
    ("kind", "state"), [("collapse", TrialState.GIVEN_UP), ("dead_reward", TrialState.OPEN), (None, TrialState.OPEN)]
)
def test_run_that_is_ended_by_its_own_doing_is_not_tried_again_because_its_server_went_away(
    store: ExperimentStore, arm: Experiment, give_up: Callable[[Any], object], kind: str | None, state: TrialState
) -> None:
    run = _attempt(store, arm, moves=(RunStatus.LAUNCHING, RunStatus.RUNNING))
    early_stopping = EarlyStopping(StoppingLimits(), "fake", 3)
    diagnosis = None if kind is None else Diagnosis(kind, "It learns nothing.", is_scored=True, is_retried=False)
    deps = _deps(store, arm.study_id)
    deps.active_runs.add(
        ActiveRun(
            run.id, "a run", arm, 3, Slot(0), early_stopping,
            phase=Phase.ENDING, diagnosis=diagnosis, away_since=time.monotonic(),
        )
    )  # fmt: skip

    give_up(deps)

    (trial,) = list_trials(store, arm.study_id, _plan(arm.name))
    assert trial.state is state
    if state is TrialState.GIVEN_UP:
        assert (trial.runs[0].status, trial.runs[0].exit_reason) == (RunStatus.FAILED, "It learns nothing.")
