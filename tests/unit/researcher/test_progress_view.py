"""What people see of a study: tables and lines that say where each run is."""

from __future__ import annotations

import io
import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from simulated_study import Simulation
from store_samples import finish_run

from experiments_db import TRAINING_SECONDS, ExperimentStore, RunStatus
from researcher.charter import Budget
from researcher.planner.language_model.briefing import show_budget
from researcher.study.overview import TrialProgress, estimate_seconds_left, take_snapshot
from researcher.study.progress import Follower, render
from swarm.guard import REWARD


@pytest.fixture
def study_id(store: ExperimentStore) -> str:
    """A study with one run in training."""
    study = store.create_study("Does [bold]markup[/bold] matter?", planner="rules")
    arm = store.create_experiment(study.id, "lr=0.001", factors={"lr": 0.001}, job={"total_steps": 30})
    run = store.claim_run(arm.id, 2, "key", job={"total_steps": 30})
    store.update_run(run.id, status=RunStatus.LAUNCHING)
    store.update_run(run.id, status=RunStatus.RUNNING)
    store.record_metrics(run.id, {12: {REWARD: 0.625}})
    return study.id


def _text(renderable: object) -> str:
    console = Console(file=io.StringIO(), width=160, no_color=True)
    console.print(renderable)
    return console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]


def test_snapshot_shows_step_reward_and_topic_as_it_was_written(store: ExperimentStore, study_id: str) -> None:
    text = _text(render(take_snapshot(store, study_id)))

    assert "Does [bold]markup[/bold] matter?" in text
    assert "lr=0.001" in text and "12/30" in text and "0.625" in text


def test_seconds_of_a_run_are_those_of_its_steps_and_no_step_has_no_rate(store: ExperimentStore, study_id: str) -> None:
    [before] = take_snapshot(store, study_id).runs
    assert before.seconds is None
    store.record_metrics(before.run_id, {11: {TRAINING_SECONDS: 2.0}, 12: {TRAINING_SECONDS: 4.0}})
    snapshot = take_snapshot(store, study_id)
    assert snapshot.runs[0].seconds == 6.0 and "0.5" in _text(render(snapshot))


def test_snapshot_is_json(store: ExperimentStore, study_id: str) -> None:
    data = json.loads(json.dumps(take_snapshot(store, study_id).to_json()))

    assert data["runs"][0]["step"] == 12 and data["study"]["status"] == "running"


def test_log_gets_one_plain_line_per_event(store: ExperimentStore, study_id: str) -> None:
    store.append_event(study_id, "old", "before the following began")
    out = io.StringIO()
    with Follower(store, study_id, Console(file=out, width=20)):
        store.append_event(study_id, "run.launched", "lr=0.001 seed 2 [red]launched[/red] on a server")
        time.sleep(0.1)

    lines = out.getvalue().splitlines()
    assert len(lines) == 1
    assert lines[0].endswith("lr=0.001 seed 2 [red]launched[/red] on a server")


def test_terminal_gets_a_live_table(store: ExperimentStore, study_id: str) -> None:
    out = io.StringIO()
    with Follower(store, study_id, Console(file=out, width=160, force_terminal=True, no_color=True)):
        store.append_event(study_id, "run.launched", "launched on a server")

    assert "12/30" in out.getvalue() and "launched on a server" in out.getvalue()


def test_progress_counts_each_arm_and_seed_once_whatever_plans_and_attempts_say(tmp_path: Path) -> None:
    study = Simulation(rounds=2, failed=(("lr=0.0003", 0), ("lr=0.003", 1))).carry_out(tmp_path)
    finished = take_snapshot(study.store, study.study_id)
    history = study.deps.log.history()
    charter = replace(study.deps.charter(), budget=Budget(max_runs=24))
    study.store.close()

    # Two plans of 9 and 18 entries, of which the second names the 9 of the first again; 20 attempts were made.
    assert len(finished.runs) == 20
    assert (finished.done, finished.planned, finished.seconds_left) == (18, 18, None)
    assert (history.planned_runs, history.runs_used) == (18, 18)
    assert "18 are used" in show_budget(charter, history)


def test_a_run_that_takes_longer_than_the_others_is_not_said_to_be_about_to_end() -> None:
    late = TrialProgress(done=3, planned=4, took_s=20.0, active_since=(1000.0,))
    assert estimate_seconds_left(late, 1005.0) == 15.0
    assert estimate_seconds_left(late, 1120.0) == 30.0
    assert estimate_seconds_left(replace(late, done=4, active_since=()), 1120.0) is None


def test_time_left_is_said_in_words(store: ExperimentStore, study_id: str) -> None:
    snapshot = replace(take_snapshot(store, study_id), done=3, planned=4, seconds_left=30.0)
    assert snapshot.progress == "3 of 4 runs done, about 30 s left"
    assert replace(snapshot, seconds_left=0.2).progress == "3 of 4 runs done, less than 1 s left"


def test_an_arm_that_is_out_does_not_lead(store: ExperimentStore, study_id: str) -> None:
    for arm, score in (("cheat", 0.9), ("honest", 0.5)):
        experiment = store.create_experiment(study_id, arm, factors={"lr": 1.0}, job={"total_steps": 30})
        finish_run(store, experiment.id, 0, {"final": score})
    before = take_snapshot(store, study_id).leader
    out = {"disqualified": {"cheat": "it cheats"}}
    store.record_decision(study_id, iteration=0, action="stop", reason="it cheats", details=out)

    snapshot = take_snapshot(store, study_id)
    assert before is not None and snapshot.leader is not None
    assert (before[0], snapshot.leader[0], snapshot.to_json()["leader"]) == ("cheat", "honest", "honest")


def test_a_study_at_work_shows_arms_by_seeds_and_the_leader(store: ExperimentStore, study_id: str) -> None:
    for name, scores in (("lr=0.003", (0.9, 0.7)), ("lr=[b]1[/b]", (0.1, 0.3))):
        arm = store.create_experiment(study_id, name, factors={"lr": 1.0}, job={"total_steps": 30})
        for seed, score in enumerate(scores):
            finish_run(store, arm.id, seed, {"final": score})

    text = _text(render(take_snapshot(store, study_id)))

    assert "leader so far: lr=0.003, held-out mean 0.800 of 2 runs (no verdict yet)" in text
    assert "lr=[b]1[/b]" in text and "0.700" in text


@pytest.mark.parametrize("width", [80, 140])
def test_many_arms_and_seeds_fit_the_width(store: ExperimentStore, study_id: str, width: int) -> None:
    for number in range(20):
        arm = store.create_experiment(study_id, f"lr={number},batch_size=16", factors={}, job={"total_steps": 30})
        for seed in range(12):
            store.claim_run(arm.id, seed, f"{number}/{seed}", job={"total_steps": 30})
    console = Console(file=io.StringIO(), width=width, no_color=True)
    console.print(render(take_snapshot(store, study_id)))
    text = console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
    assert "more arms not shown" in text and all(len(line) <= width for line in text.splitlines())


def test_time_left_follows_from_how_long_runs_took_and_how_many_are_at_work(
    store: ExperimentStore, study_id: str
) -> None:
    [arm] = store.list_experiments(study_id)
    plan = {"name": arm.name, "factors": {}, "job": {}, "rationale": "", "is_baseline": True, "parent": None,
            "environment": None}  # fmt: skip
    document = {"iteration": 0, "rationale": "", "seeds": [2, 3, 4], "hypotheses": [], "arms": [plan], "rungs": {}}
    store.record_plan(study_id, 0, document)
    assert take_snapshot(store, study_id).progress == "0 of 3 runs done"

    finish_run(store, arm.id, 3, {})

    snapshot = take_snapshot(store, study_id)
    assert (snapshot.done, snapshot.planned) == (1, 3) and snapshot.seconds_left is not None
    assert snapshot.progress.startswith("1 of 3 runs done, ") and snapshot.progress.endswith(" left")
    assert "1 of 3 runs done" in _text(render(snapshot))
    assert snapshot.to_json()["runs_planned"] == 3
