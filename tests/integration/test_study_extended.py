"""A finished study that goes on: as far as its charter has alpha left, and with a record that still holds."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from simulated_study import reports_without_images
from typer.testing import CliRunner, Result

from experiments_db import ExperimentStore, RunStatus, StudyStatus, open_store
from researcher.cli import app
from researcher.loop.session import work_on
from researcher.record.log import StudyLog, plan_from_json
from researcher.study.requests import create_study
from researcher.study.settings import StudySettings

TOPIC = "batch size 2 or 3 for tool use at equal steps"


@pytest.fixture(scope="module")
def finished(
    tmp_path_factory: pytest.TempPathFactory, start_shared_server: Callable[..., Any]
) -> Iterator[tuple[ExperimentStore, Path, str]]:
    """A store, its folder and a finished study, which no test changes."""
    home = tmp_path_factory.mktemp("finished")
    with reports_without_images(), open_store(home / "research.db") as store:
        yield store, home, carry_out(store, home, servers=[start_shared_server().url])


def carry_out(store: ExperimentStore, home: Path, **settings: Any) -> str:
    small = {"engine": "fake", "steps": 2, "seeds": 1, "eval_episodes": 6, "parallel": 1}
    study = create_study(store, TOPIC, StudySettings.model_validate(small | settings))
    assert work_on(store, study.id, home).study.status is StudyStatus.FINISHED
    return study.id


def call(home: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments, "--home", str(home), "--json"])


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_extended_study_trains_fresh_runs_on_the_alpha_that_is_left(store: ExperimentStore, tmp_path: Path) -> None:
    study = carry_out(store, tmp_path, max_runs=3)
    before = store.list_runs(study_id=study)
    charter, tested = store.find_charter(study), len(store.list_evaluations(study_id=study, phase="test"))

    extended = call(tmp_path, "extend", study, "--seeds", "2", "--max-runs", "6")

    assert extended.exit_code == 0, extended.stderr
    assert json.loads(extended.stdout)["status"] == "finished"
    assert store.find_charter(study) == charter
    first, second = (plan_from_json(item.document) for item in store.list_plans(study))
    assert (first.seeds, second.seeds, second.pools_runs) == ((0,), (1, 2), False)
    runs = store.list_runs(study_id=study)
    assert [(run.id, run.finished_at) for run in runs[:2]] == [(run.id, run.finished_at) for run in before]
    assert [run.status for run in runs] == [RunStatus.FINISHED] * 6
    assert len(store.list_evaluations(study_id=study, phase="test")) == tested
    last = StudyLog(store, study).history().analyses[-1]
    assert all(comparison.seeds == (1, 2) for comparison in last.comparisons)
    verified = call(tmp_path, "verify", study)
    assert verified.exit_code == 0, verified.stdout
    again = call(tmp_path, "extend", study, "--max-runs", "99")
    assert again.exit_code == 11 and "alpha" in again.stderr and len(store.list_runs(study_id=study)) == 6


def test_what_the_charter_leaves_no_alpha_for_is_refused_and_the_study_left_as_it_is(
    finished: tuple[ExperimentStore, Path, str],
) -> None:
    store, home, study = finished
    before = (store.list_studies(), store.list_events(study, limit=None))

    refused = call(home, "extend", study)
    assert refused.exit_code == 11
    assert len(refused.stderr.splitlines()) == 1 and f"researcher start --topic '{TOPIC}'" in refused.stderr
    assert (store.list_studies(), store.list_events(study, limit=None)) == before


@pytest.mark.slow
def test_what_cannot_be_extended_is_refused_by_name(store: ExperimentStore, tmp_path: Path) -> None:
    running = create_study(store, TOPIC, StudySettings()).id
    study = carry_out(store, tmp_path, max_runs=3)

    for arguments, code, words in (
        ((running,), 2, "is running, not finished"),
        ((study, "--seeds", "2"), 2, "--max-runs is 3"),
        ((study, "--iterations", "2", "--max-runs", "9"), 11, "leaves alpha for 1 more"),
        (("st-none",), 3, "there is no study"),
    ):
        refused = call(tmp_path, "extend", *arguments)
        assert refused.exit_code == code, refused.stderr
        assert words in refused.stderr
    assert store.get_study(study).status is StudyStatus.FINISHED
