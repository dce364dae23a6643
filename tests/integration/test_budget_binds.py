"""Budgets that end a study under way, and the same study once they are raised."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from slow_samplers import Pace
from typer.testing import CliRunner

from experiments_db import BudgetKind, ExperimentStore, RunStatus, StudyStatus
from researcher.cli import app
from researcher.errors import TopicInvalid
from researcher.loop.session import work_on
from researcher.study.requests import create_study
from researcher.study.settings import StudySettings
from researcher.verification.verify import verify_study

TOPIC = "batch size 2 or 3 on reversal at equal steps"


@pytest.fixture
def urls(start_server: Callable[..., Any]) -> list[str]:
    return [start_server().url]


def begin(store: ExperimentStore, urls: list[str], **changes: Any) -> str:
    settings: dict[str, Any] = {"engine": "fake", "steps": 2, "seeds": 1, "eval_episodes": 4, "servers": urls}
    return create_study(store, TOPIC, StudySettings.model_validate({**settings, **changes})).id


def verdicts(store: ExperimentStore, study_id: str) -> list[tuple[Any, ...]]:
    """What the study says of its arms, without what is its own in any case: ids and times."""
    arms = {item.id: item.name for item in store.list_experiments(study_id)}
    findings = store.list_findings(study_id=study_id)
    return [
        *(
            (item.iteration, arms[item.experiment_id], item.effect, item.verdict, item.details["seeds"])
            for item in findings
        ),
        *((item.iteration, item.action, item.reason) for item in store.list_decisions(study_id)),
    ]


def finished(store: ExperimentStore, study_id: str) -> int:
    return len(store.list_runs(study_id=study_id, statuses=[RunStatus.FINISHED]))


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_raised_budget_of_runs_ends_as_if_it_had_been_there_from_the_beginning(store, urls, tmp_path):
    whole = begin(store, urls, max_runs=2)
    assert work_on(store, whole, tmp_path).study.status is StudyStatus.FINISHED

    short = begin(store, urls, max_runs=1)
    ended = work_on(store, short, tmp_path).study
    assert ended.status is StudyStatus.FAILED and "the budget is spent" in (ended.status_reason or "")
    assert (finished(store, short), store.sum_budget(short)[BudgetKind.RUNS]) == (1, 1)
    charter = store.find_charter(short)
    assert charter is not None and charter.test_opened_at is None

    assert work_on(store, short, tmp_path, budget={"max_runs": 2}).study.status is StudyStatus.FINISHED

    assert verdicts(store, short) == verdicts(store, whole)
    [change] = store.list_events(short, kind="budget.changed")
    assert change.payload == {"limits": {"max_runs": {"old": 1, "new": 2}}}
    assert verify_study(store, short, tmp_path).mismatches == 0

    with pytest.raises(TopicInvalid, match="its test split has been opened"):
        work_on(store, short, tmp_path, budget={"max_runs": 40})


@pytest.mark.timeout(400)
def test_spent_gpu_hours_stop_the_run_under_way_which_is_no_failure_of_its_arm(store, urls, tmp_path, monkeypatch):
    pace = Pace(last_step=1)
    monkeypatch.setattr("swarm.server.http.Backends", pace.backends())
    study_id = begin(store, urls, n_gpu=1, max_gpu_hours=1e-6)

    ended = work_on(store, study_id, tmp_path).study
    assert ended.status is StudyStatus.FAILED
    assert (ended.status_reason or "").startswith(
        "no arm has a score: the budget is spent; 1 of 1 trainings ended by the budget"
    )

    [run] = store.list_runs(study_id=study_id)
    assert run.status is RunStatus.STOPPED and run.diagnosis is not None and run.diagnosis["kind"] == "budget"
    assert "GPU-hours are used: raise --max-gpu-hours" in (run.exit_reason or "")
    report = (tmp_path / "studies" / study_id / "report" / "report.md").read_text()
    assert "1 without a score, stopped by the budget" in report
    assert "The budget ended the study before its last plan was done" in report

    pace.last_step = None
    assert work_on(store, study_id, tmp_path, budget={"max_gpu_hours": 1000.0}).study.status is StudyStatus.FINISHED
    assert finished(store, study_id) == 2
    assert store.sum_budget(study_id)[BudgetKind.RUNS] == 2


def test_status_shows_what_is_spent_of_each_budget_and_resume_refuses_less(store, urls, tmp_path):
    study_id = begin(store, urls, max_runs=8, max_hours=2.5, max_gpu_hours=4)
    store.charge_budget(study_id, BudgetKind.RUNS, 3, "three")
    store.charge_budget(study_id, BudgetKind.GPU_HOURS, 1.25, "some")
    common = [study_id, "--home", str(tmp_path)]

    shown = CliRunner().invoke(app, ["status", *common])
    as_json = CliRunner().invoke(app, ["status", *common, "--json"])
    refused = CliRunner().invoke(app, ["resume", *common, "--max-gpu-hours", "1"])

    assert "spent: 3 of 8 runs, 0 of 2.5 hours of work, 1.25 of 4 GPU-hours" in " ".join(shown.stdout.split())
    assert '"gpu_hours": {' in as_json.stdout
    assert refused.exit_code == 2 and "--max-gpu-hours 1: 1.25 are used already" in refused.stderr
    assert store.get_study(study_id).settings["max_gpu_hours"] == 4
