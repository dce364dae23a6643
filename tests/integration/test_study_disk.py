"""A study and the disk it writes on: what it waits for, what it removes, and what can be checked afterwards."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner
from waiting import wait_until

from experiments_db import ExperimentStore, RunStatus, StudyStatus
from researcher.cli import app
from researcher.execution.storage import GB
from researcher.loop.session import work_on
from researcher.phases import PRUNED
from researcher.study.requests import ask_to_end, create_study
from researcher.study.settings import StudySettings

TOPIC = "batch size 2 or 3 for tool use at equal steps"
LIMIT_S = 100


def carry_out(store: ExperimentStore, home: Path, **settings: Any) -> str:
    small = {"engine": "fake", "steps": 2, "seeds": 2, "eval_episodes": 6, "parallel": 1}
    study = create_study(store, TOPIC, StudySettings.model_validate(small | settings))
    work_on(store, study.id, home)
    return study.id


def checkpoints_left(home: Path, study: str) -> list[Path]:
    return sorted((home / "studies" / study / "servers").glob("*/research/*/run-*/checkpoints/step-*"))


@pytest.mark.slow
@pytest.mark.parametrize(("kept", "left"), [("all", 4), ("best", 2), ("none", 0)])
def test_finished_study_keeps_the_checkpoints_that_it_was_told_to(
    store: ExperimentStore, tmp_path: Path, kept: str, left: int
) -> None:
    study = carry_out(store, tmp_path, keep_checkpoints=kept)

    runs = store.list_runs(study_id=study, statuses=[RunStatus.FINISHED])
    assert len(runs) == 4 and store.list_evaluations(study_id=study, phase="test")
    assert len(checkpoints_left(tmp_path, study)) == left
    assert sum(len(run.external_ids.get(PRUNED, ())) for run in runs) == 4 - left
    assert not list((tmp_path / "studies" / study / "servers").glob("*/research/*/run-*/recovery/*"))
    verified = CliRunner().invoke(app, ["verify", study, "--home", str(tmp_path), "--json"])
    assert verified.exit_code == 0, verified.stdout
    notes = next(item["notes"] for item in json.loads(verified.stdout)["checks"] if item["kind"] == "checkpoints")
    assert bool(notes) == (left < 4)
    assert all(run.id in notes[0] for run in runs if run.external_ids.get(PRUNED))


@pytest.mark.slow
def test_what_no_score_needs_any_more_is_removed_as_the_study_goes_on(store: ExperimentStore, tmp_path: Path) -> None:
    study = create_study(
        store, TOPIC, StudySettings(engine="fake", steps=2, seeds=3, eval_episodes=6, parallel=1, min_free_gb=1)
    )
    runs: dict[int, int] = {}

    def look(path: Path) -> int:
        finished = len(store.list_runs(study_id=study.id, statuses=[RunStatus.FINISHED]))
        runs[finished] = len(list(tmp_path.glob("studies/*/servers/*/research/*/run-*/recovery")))
        return 2 * GB

    work_on(store, study.id, tmp_path, measure_space=look)

    assert max(runs) >= 4
    assert max(runs.values()) <= 2, "the newest run and the one before it, before it is over"


@pytest.mark.slow
def test_run_whose_checkpoint_is_gone_is_trained_again_from_its_base(store: ExperimentStore, tmp_path: Path) -> None:
    study = carry_out(store, tmp_path, keep_checkpoints="none", seeds=1)
    run = store.list_runs(study_id=study)[0]

    repeated = CliRunner().invoke(app, ["reproduce", run.id, "--home", str(tmp_path), "--json"])

    assert repeated.exit_code == 0, repeated.stderr
    assert json.loads(repeated.stdout)["is_within"]


def test_study_waits_for_space_and_goes_on_once_there_is_some(
    store: ExperimentStore, tmp_path: Path, start_server: Callable[..., Any]
) -> None:
    free = [GB // 2]
    urls = (start_server().url,)
    study = create_study(
        store, TOPIC, StudySettings(engine="fake", steps=2, seeds=1, eval_episodes=6, servers=urls, max_hours=1)
    )

    def kinds() -> list[str]:
        return [event.kind for event in store.list_events(study.id)]

    def make_room() -> None:
        wait_until(lambda: "disk.low" in kinds())
        assert "run.launched" not in kinds()
        free[0] = 2 * GB

    person = threading.Thread(target=make_room)
    person.start()
    outcome = work_on(store, study.id, tmp_path, measure_space=lambda path: free[0])
    person.join()

    assert outcome.study.status is StudyStatus.FINISHED
    assert kinds().count("disk.low") == kinds().count("disk.free") == 1
    assert "0.50 GB free" in next(event.message for event in store.list_events(study.id, kind="disk.low"))


@pytest.mark.slow
def test_study_that_waits_for_space_can_be_paused_and_resumed_with_a_lower_limit(
    store: ExperimentStore, tmp_path: Path
) -> None:
    settings = StudySettings(engine="fake", steps=2, seeds=1, eval_episodes=6, parallel=1, min_free_gb=10**9)
    study = create_study(store, TOPIC, settings)

    def pause() -> None:
        wait_until(lambda: bool(store.list_events(study.id, kind="disk.low")))
        ask_to_end(store, study.id, StudyStatus.PAUSED)

    person = threading.Thread(target=pause)
    person.start()
    paused = work_on(store, study.id, tmp_path)
    person.join()
    assert paused.study.status is StudyStatus.PAUSED
    assert not store.list_runs(study_id=study.id)

    resumed = CliRunner().invoke(app, ["resume", study.id, "--home", str(tmp_path), "--min-free-gb", "0"])

    assert resumed.exit_code == 0, resumed.stderr
    assert store.get_study(study.id).status is StudyStatus.FINISHED
