"""A run is trained again from its record, on an own server or one that was named; the record stays as it is."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from simulated_study import reports_without_images
from typer.testing import CliRunner, Result

from experiments_db import open_store
from researcher.cli import app
from researcher.study.requests import create_study
from researcher.study.settings import StudySettings
from researcher.verification.verify import verify_study


@dataclass(frozen=True)
class Done:
    home: Path
    study_id: str
    run_ids: tuple[str, ...]

    def reproduce(self, run_id: str, *options: str) -> Result:
        return CliRunner().invoke(app, ["reproduce", run_id, "--home", str(self.home), *options])


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory, start_shared_server: Callable[..., Any]) -> Iterator[Done]:
    """A study of two arms by one seed on the engine without a model."""
    from researcher.loop.session import work_on

    home = tmp_path_factory.mktemp("study")
    with reports_without_images(), open_store(home / "research.db") as store:
        urls = (start_shared_server().url,)
        settings = StudySettings(engine="fake", steps=2, seeds=1, eval_episodes=6, servers=urls, max_runs=2)
        study = create_study(store, "batch size 2 or 3 for tool use", settings)
        work_on(store, study.id, home)
        runs = tuple(run.id for run in store.list_runs(study_id=study.id))
    yield Done(home, study.id, runs)


def _dump(home: Path) -> list[str]:
    with closing(sqlite3.connect(home / "research.db")) as database:
        return list(database.iterdump())


@pytest.mark.slow
def test_a_study_that_really_ran_is_verified_without_a_mismatch(done: Done) -> None:
    with open_store(done.home / "research.db", read_only=True) as store:
        result = verify_study(store, done.study_id, done.home)

    assert [(check.kind, check.mismatches) for check in result.checks if check.mismatches] == []
    checks = {check.kind: check.checked for check in result.checks}
    assert checks["jobs"] == checks["runs"] == 2 and checks["programs"] == 4
    assert checks["scores"] >= 4


@pytest.mark.slow
def test_run_is_trained_and_scored_again_and_the_record_stays_as_it_is(done: Done) -> None:
    before = _dump(done.home)

    result = done.reproduce(done.run_ids[0], "--json")

    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout.splitlines()[-1])
    assert document["is_within"] and document["differing"] == []
    # The engine without a model answers the same words whenever it is asked: nothing is left to chance.
    assert document["is_same_training"] and document["is_same_scoring"]
    assert document["recorded"]["after"] == document["repeated"]["after"]
    assert _dump(done.home) == before
    assert (Path(document["folder"]) / "research.db").is_file()


def test_what_is_not_as_it_was_is_named_and_a_score_outside_the_interval_is_exit_8(
    done: Done, start_server: Callable[..., Any], tmp_path: Path
) -> None:
    home = tmp_path / "changed"
    home.mkdir()
    with closing(sqlite3.connect(done.home / "research.db")) as database:
        database.execute("VACUUM INTO ?", (str(home / "research.db"),))
    run_id = done.run_ids[1]
    with closing(sqlite3.connect(home / "research.db")) as database, database:
        database.execute("UPDATE evaluations SET mean = 0.9 WHERE run_id = ? AND phase = 'final'", (run_id,))
        database.execute(
            "UPDATE runs SET environment = json_set(environment, '$.python', '2.7') WHERE id = ?", (run_id,)
        )
    changed = Done(home, done.study_id, done.run_ids)

    result = changed.reproduce(run_id, "--server", start_server().url, "--note")

    assert result.exit_code == 8, result.output
    assert "OUTSIDE the interval" in result.stdout and "differs: python was 2.7" in result.stdout
    with open_store(home / "research.db", read_only=True) as store:
        [event] = store.list_events(done.study_id, kind="run.reproduced")
        assert event.run_id == run_id and not event.payload["is_within"]


def test_run_that_has_no_score_is_refused_in_one_line(done: Done, tmp_path: Path) -> None:
    with open_store(tmp_path / "research.db") as store:
        study = store.create_study("t", planner="rules")
        store.freeze_charter(study.id, _charter_of(done))
        arm = store.create_experiment(study.id, "a", factors={}, job={"total_steps": 1})
        run = store.claim_run(arm.id, 0, "key")

    refused = Done(tmp_path, study.id, ()).reproduce(run.id)
    unknown = Done(tmp_path, study.id, ()).reproduce("run-0")

    assert refused.exit_code == 1 and "has no score to compare a repeat with" in refused.stderr
    assert unknown.exit_code == 3 and len(unknown.stderr.splitlines()) == 1


def _charter_of(done: Done) -> dict[str, Any]:
    with open_store(done.home / "research.db", read_only=True) as store:
        charter = store.find_charter(done.study_id)
        assert charter is not None
        return dict(charter.document)
