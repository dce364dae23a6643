"""A study with a language model, from the command line: it names the arms, the evaluator says what they are worth.

Researcher, swarm servers, programs in their sandbox and the model's server are processes of their own; the model's
answers are recorded ones. What it says of the results is false.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import pytest

from experiments_db import ExperimentStatus, ExperimentStore, RunStatus, StudyStatus, open_store

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed"),
]

TESTS = Path(__file__).parents[1]
REPLIES = TESTS / "llm_replies" / "learning_rate"
TOPIC = "Which learning rate trains word reversal best, 1e-4 or 1e-3?"
KEY = "sk-canary-7d1e5b90a3c246f8"
BASELINE, SMALL = "lr=0.001", "lr=0.0001"
SEEDS, STEPS = 3, 5
FLAGS = ("--seeds", str(SEEDS), "--steps", str(STEPS), "--eval-episodes", "64", "--parallel", "2")
INVENTED = ("0.987654", "0.876543")
"""Numbers in the model's interpretation and decision that nobody measured; they are to speak for the worse arm."""


@dataclass(frozen=True)
class Ended:
    """What the command line left behind. `said` is its stdout and stderr."""

    code: int
    paths: dict[str, str]
    said: str
    home: Path
    store: ExperimentStore

    @property
    def study_id(self) -> str:
        return self.paths["study"]

    def scores(self, phase: str) -> dict[str, dict[int, float]]:
        """Arm to seed to the score that the evaluator measured."""
        arms = {item.id: item.name for item in self.store.list_experiments(self.study_id)}
        runs = {run.id: run for run in self.store.list_runs(study_id=self.study_id)}
        found: dict[str, dict[int, float]] = {}
        for item in self.store.list_evaluations(study_id=self.study_id, phase=phase, split="validation"):
            run = runs[item.run_id]
            found.setdefault(arms[run.experiment_id], {})[run.seed] = item.mean
        return found


@pytest.fixture(scope="module")
def replies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recorded answers, with a plan of two arms instead of three."""
    folder = tmp_path_factory.mktemp("replies") / "learning_rate"
    shutil.copytree(REPLIES, folder)
    plan = json.loads((folder / "plan.1.md").read_text().partition("</think>")[2])
    plan["arms"] = [arm for arm in plan["arms"] if arm["name"] in (BASELINE, SMALL)]
    plan["hypotheses"] = [item for item in plan["hypotheses"] if item["arms"] == [SMALL]]
    (folder / "plan.1.md").write_text(json.dumps(plan))
    framed = (folder / "frame.1.md").read_text()
    (folder / "frame.1.md").write_text(
        framed.replace("0.001, 0.0001 or 0.01?", "0.001 or 0.0001?").replace("1e-3,1e-2,", "1e-3,")
    )
    return folder


@pytest.fixture(scope="module")
def model_url(replies: Path) -> Iterator[str]:
    argv = [sys.executable, "-m", "llm_replies.server", str(replies)]
    environment = {**os.environ, "PYTHONPATH": f"{TESTS}{os.pathsep}{TESTS.parent}"}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=environment) as server:
        try:
            assert server.stdout is not None
            yield server.stdout.readline().strip()
        finally:
            server.terminate()
            server.wait(timeout=60)


@pytest.fixture(scope="module")
def ended(model_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ended]:
    home = tmp_path_factory.mktemp("llm-study")
    argv = [sys.executable, "-m", "researcher.cli", "start", "--planner", "llm", "--model", "recorded"]
    argv += ["--topic", TOPIC, *FLAGS, "--home", str(home), "--json"]
    environment = {**os.environ, "OPENAI_BASE_URL": model_url, "OPENAI_API_KEY": KEY}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=280)
    assert done.stdout, done.stderr
    with open_store(home / "research.db", read_only=True) as store:
        yield Ended(done.returncode, json.loads(done.stdout), done.stdout + done.stderr, home, store)


@pytest.mark.timeout(400)
def test_study_is_carried_to_its_end_with_the_arms_the_model_planned(ended: Ended) -> None:
    assert ended.code == 0, ended.said
    assert ended.store.get_study(ended.study_id).status is StudyStatus.FINISHED
    arms = {item.id: item for item in ended.store.list_experiments(ended.study_id)}
    assert {(item.name, item.status) for item in arms.values()} == {
        (BASELINE, ExperimentStatus.READY),
        (SMALL, ExperimentStatus.READY),
    }
    runs = ended.store.list_runs(study_id=ended.study_id)
    assert {run.status for run in runs} == {RunStatus.FINISHED}
    finished = sorted((arms[run.experiment_id].name, run.seed) for run in runs)
    assert finished == [(arm, seed) for arm in (SMALL, BASELINE) for seed in range(SEEDS)]


@pytest.mark.timeout(400)
def test_verdict_follows_from_the_scores_and_not_from_the_model(ended: Ended) -> None:
    final = ended.scores("final")
    (finding,) = ended.store.list_findings(study_id=ended.study_id)

    assert finding.effect == pytest.approx(fmean(final[SMALL].values()) - fmean(final[BASELINE].values()))
    assert finding.verdict.value != "keep" and max(final, key=lambda arm: fmean(final[arm].values())) == BASELINE
    (decision,) = ended.store.list_decisions(ended.study_id)
    said = f"{decision.details['claims']} {decision.reason}"
    assert "lr=0.0001 is the winner" in said and all(number in said for number in INVENTED)
    for name in ("report", "html"):
        report = Path(ended.paths[name]).read_text()
        for words in ("is the winner", *INVENTED):
            # As the model's own words, or as a claim that the record refutes.
            found = [line for line in report.splitlines() if words in line]
            assert found and all("unchecked:" in line or "False:" in line for line in found)


@pytest.mark.timeout(400)
def test_key_of_the_model_is_in_no_file_and_in_no_output(ended: Ended) -> None:
    files = [path for path in ended.home.rglob("*") if path.is_file()]

    assert any(path.name == "research.db" for path in files) and any(path.name == "train.log" for path in files)
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []
    assert KEY not in ended.said
