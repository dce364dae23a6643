"""Studies that score held-out tasks in mid-training, and judge arms by how soon they learn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from experiments_db import open_store
from researcher.cli import app
from researcher.judge.learning_curves import area_under, curve_of
from researcher.phases import MEASURED_ON

pytestmark = pytest.mark.timeout(400)

SETTINGS = ["--engine", "fake", "--planner", "rules", "--seeds", "1", "--steps", "7", "--eval-episodes", "10", "--json"]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    return tmp_path


def start(*words: str, topic: str = "lr 0.001 or 0.003 on reverse") -> Any:
    return CliRunner().invoke(app, ["start", "--topic", topic, *SETTINGS, *words])


@pytest.mark.slow
def test_runs_are_scored_at_the_steps_asked_for_and_judged_by_the_area_under_them(home: Path) -> None:
    done = start("--eval-every", "3", "--metric", "area")
    assert done.exit_code == 0, done.output
    study = json.loads(done.stdout)["study"]
    with open_store(home / "runs" / "research.db") as store:
        charter = store.find_charter(study)
        assert charter is not None and charter.document["eval_every"] == 3
        assert all("over all steps" in item.metric for item in store.list_findings(study_id=study))
        runs = store.list_runs(study_id=study)
        assert len(runs) == 2
        [analysis] = store.list_analyses(study)
        judged = {run: score for arm in analysis.document["arms"] for run, score in zip_runs(arm)}
        for run in runs:
            curve = curve_of(store.list_evaluations(run_ids=[run.id], split="validation"), "validation", (0.0, 1.0))
            assert [point.step for point in curve] == [0, 3, 6, 7]
            area = area_under(curve)
            assert area is not None and judged[run.id] == pytest.approx(area.value)
    folder = home / "runs" / "studies" / study / "report"
    rows = (folder / "figures" / "held-out-curves.csv").read_text().splitlines()
    assert rows[0] == "arm,seed,run,step,score" and len(rows) == 1 + 2 * 4


def zip_runs(arm: dict[str, Any]) -> list[tuple[str, float]]:
    return list(zip(arm["run_ids"], arm["scores"].values(), strict=True))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--metric", "area"], "give --eval-every N"),
        (["--metric", "speed", "--eval-every", "2"], "--metric"),
        (["--eval-every", "2", "--job", "job.yaml"], "leave save_freq out of the job"),
        (["--job", "scored.yaml"], "leave eval_every out of the job"),
    ],
)
def test_what_cannot_be_scored_is_refused_before_anything_is_stored(home: Path, words: list[str], said: str) -> None:
    (home / "job.yaml").write_text("save_freq: 5\n")
    (home / "scored.yaml").write_text("eval_every: 5\neval_env: reverse\n")
    done = start(*words)
    assert done.exit_code == 2
    assert said in done.output
    assert not (home / "runs").exists()


@pytest.mark.slow
def test_base_weights_are_scored_once_for_all_runs_that_begin_with_them(home: Path) -> None:
    (home / "twice.py").write_text(
        "def agent(task, model, session):\n    model.chat(session.messages)\n    return model.chat(session.messages)\n"
    )
    (home / "plain.py").write_text("from swarm.program import answer_in_turn as agent\n")
    done = start(
        "--parallel",
        "1",
        "--program",
        "plain.py",
        "--program",
        "twice.py",
        "--vary",
        "lr=0.001,0.003",
        topic="One call or two?",
    )
    assert done.exit_code == 0, done.output
    with open_store(home / "runs" / "research.db") as store:
        study = json.loads(done.stdout)["study"]
        arms = {item.id: item.name for item in store.list_experiments(study)}
        arm_of = {run.id: arms[run.experiment_id] for run in store.list_runs(study_id=study)}
        scored = store.list_evaluations(study_id=study, phase="base")
    assert len(scored) == len(arm_of) == 4
    measured = [arm_of[item.run_id] for item in scored if MEASURED_ON not in item.details]
    assert sorted(name.split()[0] for name in measured) == ["plain", "twice"]
    for item in scored:
        if (source := item.details.get(MEASURED_ON)) is not None:
            [first] = [each for each in scored if each.run_id == source]
            assert (item.mean, item.stderr) == (first.mean, first.stderr)
            assert item.details["rewards"] == first.details["rewards"]
