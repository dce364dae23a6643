import pytest

from experiments_db import (
    Experiment,
    Run,
    RunStatus,
    StoreConflict,
    Study,
)


def test_claim_with_the_same_key_returns_the_same_run(store, experiment: Experiment, run: Run) -> None:
    launched = store.update_run(run.id, status=RunStatus.LAUNCHING, server_url="http://s:1")
    assert store.claim_run(experiment.id, 1, "key-1") == launched
    assert store.find_run("key-1") == launched
    assert store.find_run("none") is None
    assert store.list_runs() == [launched]


def test_claim_of_a_taken_seed_or_key_is_a_conflict(store, experiment: Experiment, run: Run) -> None:
    with pytest.raises(StoreConflict, match=run.id):
        store.claim_run(experiment.id, 1, "key-2")
    with pytest.raises(StoreConflict, match="another run"):
        store.claim_run(experiment.id, 2, "key-1")
    assert store.list_runs() == [run]


def test_failed_run_is_tried_again_as_the_next_attempt(store, experiment: Experiment, run: Run) -> None:
    store.update_run(run.id, status=RunStatus.FAILED, exit_reason="server died")
    retry = store.claim_run(experiment.id, 1, "key-1b", attempt=2)
    assert retry.id != run.id
    assert (retry.attempt, retry.status) == (2, RunStatus.PLANNED)


def test_seed_of_64_bits_is_kept(store, experiment: Experiment) -> None:
    assert store.claim_run(experiment.id, 2**63 - 1, "big").seed == 2**63 - 1


def test_run_keeps_what_it_is_told_and_leaves_the_rest(store, run: Run) -> None:
    store.update_run(
        run.id,
        external_ids={"job": "j1"},
        job={"lr": 0.001},
        environment={"python": "3.11"},
        base_weight_version=0,
        pid=42,
        log_path="runs/log.txt",
    )
    updated = store.update_run(run.id, final_weight_version=30, diagnosis={"kl": "fine"})
    assert updated.external_ids == {"job": "j1"}
    assert updated.environment == {"python": "3.11"}
    assert (updated.base_weight_version, updated.final_weight_version, updated.pid) == (0, 30, 42)
    assert updated.diagnosis == {"kl": "fine"}
    assert store.get_run(run.id) == updated


def test_start_and_end_times_follow_the_status(store, run: Run) -> None:
    store.update_run(run.id, status=RunStatus.LAUNCHING)
    running = store.update_run(run.id, status=RunStatus.RUNNING)
    assert running.started_at is not None and running.finished_at is None and running.duration_s is None
    store.update_run(run.id, status=RunStatus.EVALUATING)
    finished = store.update_run(run.id, status=RunStatus.FINISHED)
    assert finished.finished_at is not None
    assert finished.duration_s == finished.finished_at - running.started_at
    assert finished.status.is_over


def test_runs_are_filtered_and_counted(store, study: Study, experiment: Experiment) -> None:
    other = store.create_experiment(study.id, "other", factors={}, job={})
    elsewhere = store.create_study("elsewhere", planner="rules")
    runs = [store.claim_run(experiment.id, seed, f"a{seed}") for seed in (3, 1, 2)]
    runs.append(store.claim_run(other.id, 9, "b9"))
    store.update_run(runs[1].id, status=RunStatus.LAUNCHING)
    started = store.update_run(runs[1].id, status=RunStatus.RUNNING)
    assert [r.seed for r in store.list_runs(study_id=study.id)] == [3, 1, 2, 9]
    assert [r.seed for r in store.list_runs(experiment_id=experiment.id)] == [3, 1, 2]
    assert [r.seed for r in store.list_runs(seed=9)] == [9]
    assert store.list_runs(statuses=[RunStatus.RUNNING]) == [started]
    assert store.list_runs(statuses=[]) == []
    assert store.list_runs(study_id=elsewhere.id) == []
    assert len(store.list_runs(study_id=study.id, statuses=[RunStatus.PLANNED])) == 3
    assert store.tally_runs() == {study.id: {RunStatus.PLANNED: 3, RunStatus.RUNNING: 1}}
