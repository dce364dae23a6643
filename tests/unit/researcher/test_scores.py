"""No run is left out that failed by its own doing, and none is counted that the system lost."""

from __future__ import annotations

from dataclasses import replace

import pytest
from store_samples import record_score

from experiments_db import ExperimentStatus, ExperimentStore, RunStatus
from researcher.charter import Charter
from researcher.history import History
from researcher.judge.samples import ScoredRun
from researcher.planner.rules import RulesPlanner
from researcher.record.scores import choose_for_plan, read_scores, read_test_scores
from researcher.study.settings import StudySettings
from researcher.study.topics import read_request

CHARTER = replace(
    RulesPlanner().frame(read_request("KL or no KL for sorting?", StudySettings(seeds=2))), metric_range=(0.0, 1.0)
)


@pytest.fixture
def study(store: ExperimentStore) -> str:
    study = store.create_study("t", planner="rules").id
    for arm in ("no-kl", "kl"):
        experiment = store.create_experiment(study, arm, factors={}, job={"total_steps": 1})
        store.revise_experiment(experiment.id, status=ExperimentStatus.READY)
    return study


def begin(store: ExperimentStore, study: str, arm: str, seed: int, *, attempt: int = 1) -> str:
    experiment = store.find_experiment(study, arm)
    assert experiment is not None
    run = store.claim_run(experiment.id, seed, f"{study}/{arm}/{seed}/{attempt}", attempt=attempt)
    store.update_run(run.id, status=RunStatus.LAUNCHING)
    store.update_run(run.id, status=RunStatus.RUNNING)
    return run.id


def score(store: ExperimentStore, run_id: str, phase: str, mean: float, *, split: str = "validation") -> None:
    record_score(store, store.get_run(run_id), phase, mean, split=split, episodes=400, stderr=0.02)


def finish(
    store: ExperimentStore, study: str, arm: str, seed: int, mean: float, *, kind: str | None = None, attempt: int = 1
) -> str:
    run_id = begin(store, study, arm, seed, attempt=attempt)
    score(store, run_id, "base", 0.2)
    score(store, run_id, "final", mean)
    diagnosis = None if kind is None else {"kind": kind, "sentence": "s", "is_retried": False}
    store.update_run(run_id, status=RunStatus.FINISHED, exit_reason="done", diagnosis=diagnosis)
    return run_id


def fail(
    store: ExperimentStore, study: str, arm: str, seed: int, kind: str, *, attempt: int = 1, base: float | None = 0.25
) -> str:
    run_id = begin(store, study, arm, seed, attempt=attempt)
    if base is not None:
        score(store, run_id, "base", base)
    is_retried = kind in ("failure", "stall")
    diagnosis = {"kind": kind, "sentence": kind, "is_retried": is_retried}
    store.update_run(run_id, status=RunStatus.FAILED, exit_reason=kind, diagnosis=diagnosis)
    return run_id


def only(store: ExperimentStore, study: str, charter: Charter = CHARTER) -> ScoredRun:
    (run,) = read_scores(store, study, charter).runs["kl"].values()
    return run


@pytest.mark.parametrize("kind", ["not_finite", "overrun", "rejected"])
def test_run_that_fails_by_its_own_doing_counts_with_the_score_before_training(
    store: ExperimentStore, study: str, kind: str
) -> None:
    run_id = fail(store, study, "kl", 0, kind)

    assert only(store, study) == ScoredRun(run_id, 0.25, 0.02**2, 0.25, kind, 0.02**2)
    assert read_scores(store, study, CHARTER).missing == {}


def test_charter_may_give_failed_runs_the_worst_score(store: ExperimentStore, study: str) -> None:
    fail(store, study, "kl", 0, "not_finite")
    finish(store, study, "no-kl", 0, 0.7)

    worst = replace(CHARTER, failed_score="worst")
    assert only(store, study, worst).score == 0.0
    assert only(store, study, replace(worst, direction="minimize")).score == 1.0
    assert only(store, study, replace(worst, metric_range=None)).score == 0.2


def test_run_that_failed_before_its_base_score_gets_that_of_the_others(store: ExperimentStore, study: str) -> None:
    fail(store, study, "kl", 0, "not_finite", base=None)
    finish(store, study, "no-kl", 0, 0.7)

    assert only(store, study).score == 0.2


def test_program_that_crashes_for_good_is_the_arms_doing(store: ExperimentStore, study: str) -> None:
    fail(store, study, "kl", 0, "program")
    assert only(store, study).failure == "program"


def test_run_that_the_system_lost_stays_missing_by_name(store: ExperimentStore, study: str) -> None:
    for attempt in range(1, 5):
        fail(store, study, "kl", 0, "failure", attempt=attempt)

    scores = read_scores(store, study, CHARTER)
    assert (scores.runs["kl"], scores.missing) == ({}, {"kl": {0: "failure"}})


def test_attempts_that_failed_in_training_stand_beside_the_score_of_the_last(
    store: ExperimentStore, study: str
) -> None:
    fail(store, study, "kl", 0, "failure")
    experiment = store.find_experiment(study, "kl")
    assert experiment is not None
    never_began = store.claim_run(experiment.id, 0, f"{study}/kl/0/2", attempt=2)
    store.update_run(never_began.id, status=RunStatus.FAILED, exit_reason="no server")
    lost = begin(store, study, "kl", 0, attempt=3)
    away = {"kind": "server_lost", "sentence": "away", "is_retried": True}
    store.update_run(lost, status=RunStatus.STOPPED, exit_reason="away", diagnosis=away)
    finish(store, study, "kl", 0, 0.7, attempt=4)

    assert only(store, study).retries == ("failure",)
    assert only(store, study).base_noise == 0.02**2


def test_seed_that_the_end_of_the_budget_cut_off_is_missing_only_if_a_later_one_has_a_score(
    store: ExperimentStore, study: str
) -> None:
    def cut(seed: int) -> None:
        run_id = begin(store, study, "kl", seed)
        spent = {"kind": "budget", "sentence": "spent", "is_retried": False}
        store.update_run(run_id, status=RunStatus.STOPPED, exit_reason="spent", diagnosis=spent)

    cut(0)
    finish(store, study, "kl", 1, 0.7)
    cut(2)

    scores = read_scores(store, study, CHARTER)
    assert (scores.missing, scores.cut_off) == ({"kl": {0: "spent"}}, {"kl": {2: "spent"}})
    assert scores.reasons == {"kl": ("seed 0: spent", "seed 2: spent")}


def test_run_that_was_ended_early_keeps_its_score_and_says_why(store: ExperimentStore, study: str) -> None:
    finish(store, study, "kl", 0, 0.3, kind="collapse")
    finish(store, study, "kl", 1, 0.3, kind="dead_reward")

    runs = read_scores(store, study, CHARTER).runs["kl"]
    assert [(run.score, run.failure) for run in runs.values()] == [(0.3, "collapse"), (0.3, "")]


def test_test_scores_are_read_by_arm_and_seed(store: ExperimentStore, study: str) -> None:
    score(store, finish(store, study, "kl", 3, 0.9), "test", 0.8, split="test")

    found = read_test_scores(store, study, CHARTER)
    assert {arm: {seed: run.score for seed, run in runs.items()} for arm, runs in found.items()} == {"kl": {3: 0.8}}


def test_later_plan_is_judged_by_its_fresh_runs_unless_it_pools_them() -> None:
    first = RulesPlanner().plan(CHARTER, History())
    later = replace(first, iteration=1, seeds=(0, 1, 2, 3))
    runs = {arm.name: {seed: ScoredRun(f"{seed}", 0.5, 0.0) for seed in range(5)} for arm in first.arms}

    def seeds_of(plan, earlier) -> set[tuple[int, ...]]:
        return {tuple(by_seed) for by_seed in choose_for_plan(plan, earlier, runs).values()}

    assert seeds_of(first, []) == {(0, 1)}
    assert seeds_of(later, [first]) == {(2, 3)}
    assert seeds_of(replace(later, pools_runs=True), [first]) == {(0, 1, 2, 3, 4)}
    assert seeds_of(replace(later, seeds=(0, 1)), [first]) == {(0, 1)}
