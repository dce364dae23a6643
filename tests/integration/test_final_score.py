"""The held-out score after a training: it is measured once, and then read from the record."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from swarm import SwarmClient
from swarm.cli import app
from swarm.environments.scaffold import write_scaffold

JOB = "engine: fake\nmodel: nano\nbatch_size: 2\nnum_repeat: 2\ntotal_steps: 2\n"
LUCKY = """
import random
from pathlib import Path

def agent(task, model, session):
    with Path("calls").open("a") as calls:
        calls.write("x")
    model.chat(session.messages)
    return random.choice(task.main_query.split()[1:])
"""
TASKS = 30
TRAIN = f"train --env longer --job job.yaml --program lucky.py --eval-episodes {TASKS} --workers 8"
RECORD = Path("runs/train/longer/training.json")


@pytest.fixture(scope="module")
def url(start_shared_server: Any) -> str:
    return start_shared_server().url


@pytest.fixture
def train(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """`swarm train` in a folder with an environment, a job and a program whose answers are drawn by lot."""
    monkeypatch.chdir(tmp_path)
    write_scaffold(Path("longer"))
    Path("job.yaml").write_text(JOB)
    Path("lucky.py").write_text(LUCKY)
    with SwarmClient(url) as client:
        client.stop_engine()

    def call(words: str = "") -> Result:
        done = CliRunner().invoke(app, shlex.split(f"{TRAIN} --url {url} {words}"), env={"SWARM_HOME": None})
        assert done.exit_code == 0, done.output
        return done

    return call


def calls() -> int:
    return len(Path("calls").read_text())


def test_a_finished_training_prints_the_score_on_record_and_plays_nothing(train: Callable[..., Result]) -> None:
    first = json.loads(train("--json").stdout)
    played = calls()
    again = train("--json")
    assert json.loads(again.stdout)["after"] == first["after"] and "on record" in again.stderr
    assert train().stdout == train().stdout
    assert calls() == played


def test_a_score_that_is_asked_for_again_is_recorded_beside_the_first(train: Callable[..., Result]) -> None:
    first = json.loads(train("--json").stdout)
    assert first["scored_again"] == []
    second = json.loads(train("--json --score-again").stdout)
    assert second["after"] == first["after"] and second["ended_at"] == 2
    [measured] = second["scored_again"]
    assert measured["n"] == TASKS and measured["measured_at"]
    played = calls()
    shown = train()
    for mean in (first["after"]["mean"], measured["mean"]):
        assert f"{mean:.3f}" in shown.stdout.partition("->")[2] and f"{mean:.3f}" in shown.stderr
    assert json.loads(train("--json").stdout)["scored_again"] == [measured] and calls() == played


def test_a_training_that_goes_further_is_scored_after_its_new_last_step(train: Callable[..., Result]) -> None:
    first = train("--json")
    Path("job.yaml").write_text(JOB.replace("total_steps: 2", "total_steps: 3"))
    played = calls()
    further = json.loads(train("--json").stdout)
    assert further["steps"] == 3 and calls() == played + 4 + TASKS
    assert further["before"] == json.loads(first.stdout)["before"]


def test_a_score_of_another_number_of_tasks_moves_no_finished_training(train: Callable[..., Result]) -> None:
    first = json.loads(train("--json --eval-every 1").stdout)
    played = calls()
    assert json.loads(train("--json").stdout)["after"] == first["after"] and calls() == played
    other = json.loads(train("--json --eval-episodes 29").stdout)
    assert (other["after"]["n"], other["ended_at"]) == (29, first["ended_at"]) and calls() == played + 29
    assert json.loads(train("--json").stdout)["after"] == first["after"] and calls() == played + 29


def test_a_training_that_is_killed_in_its_last_score_measures_it_once(train: Callable[..., Result], url: str) -> None:
    kill_at = TASKS + 8 + TASKS // 2
    killed = LUCKY.replace(
        'calls.write("x")',
        f'calls.write("x")\n    if len(Path("calls").read_text()) == {kill_at}:\n'
        f"        import os\n        os.kill(os.getpid(), {int(signal.SIGKILL)})",
    )
    Path("lucky.py").write_text(killed)
    command = [sys.executable, "-m", "swarm.cli", *shlex.split(f"{TRAIN} --url {url}")]
    assert subprocess.run(command, check=False, capture_output=True, timeout=300).returncode == -signal.SIGKILL
    assert json.loads(RECORD.read_text())["final_scores"] == []
    played = calls()
    first = json.loads(train("--json").stdout)
    assert first["after"]["n"] == TASKS and calls() == played + TASKS
    assert json.loads(train("--json").stdout)["after"] == first["after"] and calls() == played + TASKS


@pytest.mark.parametrize("lost", ["base_score", "final_scores"])
def test_a_score_that_only_the_server_recorded_before_a_kill_is_no_second_time_measured(
    train: Callable[..., Result], lost: str
) -> None:
    first = json.loads(train("--json").stdout)
    record = json.loads(RECORD.read_text())
    RECORD.write_text(json.dumps({**record, lost: [] if lost == "final_scores" else None}))
    played = calls()
    again = json.loads(train("--json").stdout)
    assert (again["before"], again["after"], calls()) == (first["before"], first["after"], played)
