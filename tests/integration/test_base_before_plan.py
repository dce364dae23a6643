"""The base score of a study is measured before its first plan, and runs take it for their own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from experiments_db import ExperimentStore, StudyStatus, open_store
from researcher.base_scores import read_first_score
from researcher.cli import app
from researcher.history import History
from researcher.loop.session import work_on
from researcher.planner.language_model.briefing import show_history
from researcher.study.requests import create_study
from researcher.study.settings import StudySettings
from researcher.verification.verify import verify_study
from swarm import SwarmClient
from swarm.environments.scaffold import write_scaffold

pytestmark = pytest.mark.timeout(400)

TOPIC = "batch size 2 or 3 on reversal at equal steps"
EPISODES = 6


def test_runs_take_the_score_that_was_measured_before_the_first_plan(
    store: ExperimentStore, start_shared_server: Callable[..., Any], tmp_path: Path
) -> None:
    url = start_shared_server().url
    settings = {"engine": "fake", "steps": 1, "seeds": 1, "eval_episodes": EPISODES, "servers": [url]}
    study = create_study(store, TOPIC, StudySettings.model_validate(settings))
    assert work_on(store, study.id, tmp_path).study.status is StudyStatus.FINISHED
    first = read_first_score(store, study.id)
    assert first is not None and first.score["episodes"] == EPISODES
    kinds = [event.kind for event in store.list_events(study.id, limit=None)]
    assert kinds.index("base.scored") < kinds.index("plan.made")
    scores = store.list_evaluations(study_id=study.id, phase="base")
    assert len(scores) == 2
    assert {each.details["sampling_seed"] for each in scores} == {first.score["details"]["sampling_seed"]}
    assert [each.reward for each in store.list_episodes(scores[0].run_id, kind="eval", step=0)]
    with SwarmClient(url) as client:
        untrained = [each for each in client.episodes(episode_type="eval") if each.weight_versions == [0]]
    assert sum(each.task_id in first.score["details"]["tasks"] for each in untrained) == EPISODES
    assert verify_study(store, study.id, tmp_path).mismatches == 0


def test_a_planner_reads_the_base_score_before_its_first_plan() -> None:
    assert "0.250" in show_history(History(base_score="0.250 (standard error 0.020, 400 attempts)"), "scores")


@pytest.mark.parametrize("goes_on", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_study_of_a_model_that_solves_nothing_asks_before_it_trains(
    goes_on: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start_shared_server: Callable[..., Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    write_scaffold(Path("hard"))
    Path("hard/grade.py").write_text("def grade(task, transcript):\n    return 0.0\n")
    server = start_shared_server()
    words = ["--env", "hard", "--vary", "num_repeat=2,3", "--train-model", "nano", "--engine", "local", "--seeds", "1"]
    words += ["--steps", "1", "--eval-episodes", "4", "--planner", "rules", "--servers", server.url, "--json"]
    stopped = CliRunner().invoke(app, ["start", "--topic", "Does group size matter?", *words])
    assert stopped.exit_code == 14 and "reward alone has nothing to work with" in stopped.stderr, stopped.output
    assert "--go-on" in stopped.stderr
    with open_store(Path("runs/research.db")) as store:
        [study] = store.list_studies()
        assert study.status is StudyStatus.PAUSED and not store.list_runs(study_id=study.id)
        [event] = store.list_events(study.id, kind="study.paused")
        assert f"researcher resume {study.id} --go-on" in event.message
    again = CliRunner().invoke(app, ["resume", study.id])
    assert again.exit_code == 14
    if not goes_on:
        return
    done = CliRunner().invoke(app, ["resume", study.id, "--go-on", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["status"] == "finished"
    with open_store(Path("runs/research.db")) as store:
        assert [event.kind for event in store.list_events(study.id, kind="base.go_on")] == ["base.go_on"]
        assert len(store.list_events(study.id, kind="base.scored")) == 1
