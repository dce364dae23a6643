"""Cells of arm and seed: which are open, under way, finished or given up, and what their next attempt is called."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from experiments_db import Experiment, ExperimentStatus, ExperimentStore, Run, RunStatus, open_store
from researcher.runs import CellState, job_of, list_all_cells, list_cells, plain_name, run_key
from researcher.types import Arm, Plan


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ExperimentStore]:
    with open_store(tmp_path / "research.db") as store:
        yield store


@pytest.fixture
def arm(store: ExperimentStore) -> Experiment:
    study = store.create_study("t", brain="rules")
    created = store.create_experiment(study.id, "lr=0.1", factors={"lr": 0.1}, job={"lr": 0.1, "total_steps": 3})
    return store.revise_experiment(created.id, status=ExperimentStatus.READY)


def _plan(*arms: str, seeds: tuple[int, ...] = (0,)) -> Plan:
    return Plan(0, (), tuple(Arm(name, {}, {}, "") for name in arms), seeds, "")


def _attempt(store: ExperimentStore, arm: Experiment, *, moves: tuple[RunStatus, ...], retried: bool = True) -> Run:
    cell = list_cells(store, arm.study_id, _plan(arm.name))[0]
    run = store.claim_run(arm.id, 0, run_key(arm.study_id, cell), attempt=cell.attempt)
    for status in moves:
        diagnosis = {"is_retried": retried} if status is RunStatus.FAILED else None
        run = store.update_run(run.id, status=status, diagnosis=diagnosis, exit_reason="because")
    return run


TRAINING = (RunStatus.LAUNCHING, RunStatus.RUNNING)
FAILED = (*TRAINING, RunStatus.FAILED)
FINISHED = (*TRAINING, RunStatus.EVALUATING, RunStatus.FINISHED)
INTERRUPTED = (*TRAINING, RunStatus.STOPPED)


@pytest.mark.parametrize(
    ("attempts", "state", "next_attempt"),
    [
        ([], CellState.OPEN, 1),
        ([()], CellState.OPEN, 1),
        ([TRAINING], CellState.ACTIVE, 2),
        ([FAILED], CellState.OPEN, 2),
        ([FAILED, FAILED], CellState.GIVEN_UP, 3),
        ([INTERRUPTED, INTERRUPTED, FAILED], CellState.OPEN, 4),
        ([FAILED, FINISHED], CellState.FINISHED, 3),
    ],
)
def test_state_of_a_cell_follows_from_its_attempts(
    store: ExperimentStore,
    arm: Experiment,
    attempts: list[tuple[RunStatus, ...]],
    state: CellState,
    next_attempt: int,
) -> None:
    for moves in attempts:
        _attempt(store, arm, moves=moves)

    cell = list_cells(store, arm.study_id, _plan(arm.name))[0]

    assert (cell.state, cell.attempt) == (state, next_attempt)


def test_failure_that_is_the_arms_own_is_not_tried_again(store: ExperimentStore, arm: Experiment) -> None:
    _attempt(store, arm, moves=FAILED, retried=False)

    cell = list_cells(store, arm.study_id, _plan(arm.name))[0]

    assert cell.state is CellState.GIVEN_UP
    assert cell.failure == "because"


def test_cells_go_seed_by_seed_and_leave_out_rejected_arms(store: ExperimentStore, arm: Experiment) -> None:
    other = store.create_experiment(arm.study_id, "b", factors={}, job={})
    store.revise_experiment(other.id, status=ExperimentStatus.READY)
    bad = store.create_experiment(arm.study_id, "bad", factors={}, job={})
    store.revise_experiment(bad.id, status=ExperimentStatus.INVALID)

    cells = list_cells(store, arm.study_id, _plan(arm.name, "b", "bad", seeds=(0, 1)))

    assert [cell.name for cell in cells] == ["lr=0.1 seed 0", "b seed 0", "lr=0.1 seed 1", "b seed 1"]
    assert list_all_cells(store, arm.study_id) == []


def test_only_the_harness_sets_names_and_seed(arm: Experiment) -> None:
    job = job_of(arm.study_id, arm, seed=7, attempt=2)

    assert job["seed"] == 7 and job["lr"] == 0.1
    assert job["experiment_name"] == f"{arm.study_id}/lr_0.1/seed-7/attempt-2"


@pytest.mark.parametrize(("name", "plain"), [("lr=0.1 kl", "lr_0.1_kl"), ("../../etc", ".._.._etc"), ("", "arm")])
def test_plain_names_have_no_separators(name: str, plain: str) -> None:
    assert plain_name(name) == plain
