"""What is open, asked again and again: the answer of the rows, without reading again what has not changed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
from statement_meter import metered

from experiments_db import Experiment, ExperimentStatus, ExperimentStore, Run, RunStatus, open_store
from researcher.execution.early_stopping import StoppingLimits
from researcher.loop.learned_limits import LearnedLimits
from researcher.loop.open_trials import OpenTrials
from researcher.plan import Arm, Plan
from researcher.record.runs import Trial, TrialState, list_trials, run_key
from researcher.study.overview import SnapshotReader, take_snapshot
from swarm.guard import KL

NAMES = ("a", "b", "c")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ExperimentStore]:
    with open_store(tmp_path / "research.db") as store:
        yield store


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


def listed(store: ExperimentStore, study_id: str, plan: Plan) -> list[Trial]:
    return [trial for trial in list_trials(store, study_id, plan) if trial.state is TrialState.OPEN]


@pytest.mark.parametrize("seed", range(4))
def test_answers_are_those_of_the_rows_whatever_has_happened(store: ExperimentStore, study_id: str, seed: int) -> None:
    chance = random.Random(seed)
    add_arms(store, study_id, *NAMES)
    plan = plan_of(*NAMES, seeds=2)
    kept, under_way = OpenTrials(store, study_id), list[Run]()
    for _ in range(40):
        match chance.randrange(6):
            case 0 | 1:
                under_way += [begin(store, trial) for trial in islice(kept.of_plan(plan), chance.randrange(3))]
            case 2 if under_way:
                finish(store, under_way.pop())
            case 3 if under_way:
                diagnosis = {"is_retried": chance.random() < 0.7}
                store.update_run(under_way.pop().id, status=RunStatus.FAILED, diagnosis=diagnosis)
            case 4 if under_way:
                store.update_run(under_way.pop().id, status=RunStatus.PLANNED)
            case _:
                plan = plan_of(*NAMES, seeds=chance.randrange(1, 5), iteration=plan.iteration + 1)
        assert list(kept.of_plan(plan)) == listed(store, study_id, plan)
    assert list(OpenTrials(store, study_id).of_plan(plan)) == listed(store, study_id, plan), "as after a crash"


def test_an_arm_that_passes_its_check_later_and_a_note_on_a_finished_run_are_seen(
    store: ExperimentStore, study_id: str
) -> None:
    (first,) = add_arms(store, study_id, "a")
    draft = store.create_experiment(study_id, "b", factors={}, job={})
    plan, kept = plan_of("a", "b", seeds=1), OpenTrials(store, study_id)
    (trial,) = kept.of_plan(plan)
    run = begin(store, trial)
    finish(store, run)
    assert list(kept.of_plan(plan)) == []
    store.update_run(run.id, external_ids={"checkpoint": "pruned"})
    store.revise_experiment(draft.id, status=ExperimentStatus.READY)
    assert [open_.experiment.name for open_ in kept.of_plan(plan)] == ["b"]
    assert first.name == "a"


def test_a_look_costs_the_same_after_many_runs(tmp_path: Path) -> None:
    with metered() as meter, open_store(tmp_path / "research.db") as store:
        study_id = store.create_study("t", planner="rules").id
        add_arms(store, study_id, *NAMES)
        plan, kept, reader = plan_of(*NAMES, seeds=14), OpenTrials(store, study_id), SnapshotReader(store, study_id)

        def cost_of_looks() -> tuple[list[int], list[int]]:
            """Statements and steps of the database: with nothing new, and after a move of one run."""
            statements, steps = list[int](), list[int]()
            for moved in (None, begin(store, next(kept.of_plan(plan)))):
                if moved is not None:
                    finish(store, moved)
                before = meter.statements, meter.steps
                next(kept.of_plan(plan))
                reader.read()
                statements.append(meter.statements - before[0])
                steps.append(meter.steps - before[1])
                next(kept.of_plan(plan))
                reader.read()
            return statements, steps

        cost_of_looks()
        early = cost_of_looks()
        for trial in islice(list(kept.of_plan(plan)), 30):
            finish(store, begin(store, trial))
        cost_of_looks()
        late = cost_of_looks()
    assert late[0] == early[0]
    assert sum(late[1]) <= sum(early[1]) + 500, "a few hundred steps are a handful of rows"


def test_snapshots_that_follow_a_study_are_those_of_a_first_look(store: ExperimentStore, study_id: str) -> None:
    add_arms(store, study_id, *NAMES)
    plan, reader = plan_of(*NAMES, seeds=2), SnapshotReader(store, study_id)
    document = {"arms": [{"name": name} for name in NAMES], "seeds": [0, 1], "rungs": {}}
    store.record_plan(study_id, 0, document)
    for trial in list(OpenTrials(store, study_id).of_plan(plan)):
        run = begin(store, trial)
        if trial.seed == 0:
            finish(store, run)
        followed, fresh = reader.read(), take_snapshot(store, study_id)
        assert [(view.run_id, view.status) for view in followed.runs] == [
            (view.run_id, view.status) for view in fresh.runs
        ]
        assert (followed.done, followed.planned) == (fresh.done, fresh.planned)
    assert (fresh.done, fresh.planned) == (3, 6)


def test_limits_learn_from_each_finished_run_of_the_baseline_once(store: ExperimentStore, study_id: str) -> None:
    add_arms(store, study_id, "a", "b")
    learned = LearnedLimits(store, study_id, StoppingLimits())
    assert learned.now() == StoppingLimits()
    runs = [begin(store, trial) for trial in list(OpenTrials(store, study_id).of_plan(plan_of("a", "b", seeds=1)))]
    for run, moved in zip(runs, (20.0, 90.0), strict=True):
        store.record_metrics(run.id, {1: {KL: moved}})
        finish(store, run)
    assert learned.now().kl_limit == max(StoppingLimits().kl_limit, 2 * 20.0), "the second run is no baseline"
    assert learned.now() == LearnedLimits(store, study_id, StoppingLimits()).now()
