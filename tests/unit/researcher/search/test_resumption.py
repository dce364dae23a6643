"""Runs at rungs: which checkpoint they go on from, where, and what they cost."""

from __future__ import annotations

from pathlib import Path

import pytest
from searched_study import BASELINE, FAST, SearchedStudy, begin_search, make_charter, make_round

from experiments_db import BudgetKind, RunStatus
from researcher.charter import ComparedAt
from researcher.execution.training_process import ends_at_a_quota, quota_options
from researcher.loop.nodes.launch import claim, find_former, is_readable
from researcher.loop.pruning import prune
from researcher.phases import FROM_RUNG, PRUNED, RESUME_FROM
from researcher.record.runs import PROJECT, Trial, job_of_run, list_trials
from researcher.servers.server_pool import Slot

HOME = "http://127.0.0.1:1"


@pytest.fixture
def study(tmp_path: Path) -> SearchedStudy:
    """A search whose arm `fast` is to be trained on, with the checkpoint of its first rung."""
    study = begin_search(tmp_path, [make_round([BASELINE, FAST]), make_round([FAST], fast=4)])
    study.plan()
    study.end({"baseline": 0.3, "fast": 0.5})
    for number, name in enumerate(("fast", "baseline"), start=1):
        place = tmp_path / "servers" / "0" / PROJECT / name / f"run-{number:04}"
        checkpoint = place / "checkpoints" / "step-000002"
        checkpoint.mkdir(parents=True)
        (checkpoint / "manifest.json").write_text("{}")
        (run,) = study.store.list_runs(experiment_id=study.arm(name).id)
        study.store.update_run(run.id, external_ids={"checkpoint": str(checkpoint)}, server_url=HOME)
    study.plan()
    return study


def trial_of(study: SearchedStudy, name: str = "fast") -> Trial:
    trials = list_trials(study.store, study.deps.study_id, study.plans[-1])
    return next(trial for trial in trials if trial.experiment.name == name)


def checkpoint_of(study: SearchedStudy) -> Path:
    former = find_former(study.deps, trial_of(study))
    assert former is not None
    return Path(former.external_ids["checkpoint"])


def test_run_goes_on_from_its_lower_rung_and_is_charged_the_way_between(study: SearchedStudy) -> None:
    claim(study.deps, trial_of(study), Slot(0))

    run = study.store.list_runs(experiment_id=study.arm("fast").id)[-1]
    assert (run.rung, run.seed, run.attempt) == (4, 0, 1)
    assert run.idempotency_key == f"{study.deps.study_id}/fast/0/rung-4/1"
    assert run.job["experiment_name"].endswith("/fast/seed-0/rung-4/attempt-1")
    assert job_of_run(run, study.arm("fast"))[RESUME_FROM] == str(checkpoint_of(study))
    assert run.external_ids[FROM_RUNG] == 2
    assert study.deps.ledger.used()[BudgetKind.RUNS] == pytest.approx(2 * 0.25 + 0.25)


def test_run_whose_checkpoint_did_not_serve_is_trained_from_the_start_and_charged_for_it(study: SearchedStudy) -> None:
    claim(study.deps, trial_of(study), Slot(0))
    run = study.store.list_runs(experiment_id=study.arm("fast").id)[-1]
    study.store.update_run(run.id, status=RunStatus.FAILED, diagnosis={"kind": "failure", "is_retried": True})

    claim(study.deps, trial_of(study), Slot(0))

    again = study.store.list_runs(experiment_id=study.arm("fast").id)[-1]
    assert again.attempt == 2 and again.job.get(RESUME_FROM) is None and FROM_RUNG not in again.external_ids
    assert study.deps.ledger.used()[BudgetKind.RUNS] == pytest.approx(2 * 0.25 + 0.5)


def test_checkpoint_is_read_on_the_same_disk_or_by_the_server_that_wrote_it(study: SearchedStudy) -> None:
    former = find_former(study.deps, trial_of(study))
    assert former is not None

    assert is_readable(study.deps, former, Slot(0))
    assert is_readable(study.deps, former, Slot(0, url=HOME, is_local=False))
    assert not is_readable(study.deps, former, Slot(0, url="http://127.0.0.1:2", is_local=False))
    study.store.update_run(former.id, external_ids={**former.external_ids, PRUNED: [str(checkpoint_of(study))]})
    assert find_former(study.deps, trial_of(study)) is None


def test_checkpoints_that_may_be_trained_on_are_kept_while_the_study_explores(study: SearchedStudy) -> None:
    kept = checkpoint_of(study)

    prune(study.deps)
    assert kept.is_dir()

    study.end({"baseline": 0.3, "fast": 0.9})
    claimed = study.plan()
    assert claimed is not None and claimed.primary == ("fast",)
    prune(study.deps)
    assert not kept.is_dir()


def test_run_at_a_rung_ends_by_its_steps_and_by_its_part_of_an_equal_amount(study: SearchedStudy) -> None:
    claim(study.deps, trial_of(study), Slot(0))
    arm = study.arm("fast")
    first, second = study.store.list_runs(experiment_id=arm.id)
    tokens = make_charter(compared_at=ComparedAt.TOKENS, amount=800.0)

    assert ends_at_a_quota(study.charter, second)
    assert quota_options(study.charter, study.store, second, arm) == ("--until-steps", "4")
    assert quota_options(tokens, study.store, first, arm) == ("--until-steps", "2", "--until-tokens", "200.0")
    assert quota_options(tokens, study.store, second, arm) == ("--until-steps", "4", "--until-tokens", "200.0")
