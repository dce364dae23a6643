"""`swarm train` before its first step: pass@k of the base, and whether reward alone can start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from swarm import SwarmClient
from swarm.cli import app
from swarm.environments.scaffold import write_scaffold

JOB = "engine: fake\nbatch_size: 2\nnum_repeat: 2\ntotal_steps: 1\n"
NEVER = "def agent(task, model, session):\n    model.chat(session.messages)\n    return '?'\n"
EVERY_FOURTH = """
from collections import Counter

SEEN = Counter()

def agent(task, model, session):
    model.chat(session.messages)
    SEEN[task.task_id] += 1
    return max(task.main_query.split()[1:], key=len) if SEEN[task.task_id] % 4 == 0 else "?"
"""


def train(*words: str) -> Any:
    command = ["train", "--env", "longer", "--job", "job.yaml", "--eval-episodes", "12", "--json"]
    return CliRunner().invoke(app, [*command, *words], env={"SWARM_HOME": None, "SWARM_URL": None})


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_scaffold(tmp_path / "longer")
    Path("job.yaml").write_text(JOB)
    Path("never.py").write_text(NEVER)
    Path("fourth.py").write_text(EVERY_FOURTH)


def test_a_base_at_none_of_sixteen_is_told_so_with_the_ways_on_before_the_first_step(start_server: Any) -> None:
    done = train("--program", "never.py", "--k", "1,4,16", "--url", start_server().url)
    assert done.exit_code == 0, done.output
    before, _, _ = done.stderr.partition("step    1")
    assert "12 of 12 tasks were solved by none of 16 attempts" in before
    assert "demonstrations" in before and "another model" in before
    figures = json.loads(done.stdout)["before"]
    assert [each["k"] for each in figures["pass_at_k"]] == [1, 2, 4, 16] and figures["attempts"] == 16


def test_pass_at_k_of_the_base_is_in_the_line_the_record_and_on_the_server(start_server: Any) -> None:
    url = start_server().url
    done = train("--program", "fourth.py", "--k", "4", "--url", url)
    assert done.exit_code == 0, done.output
    before, _, _ = done.stderr.partition("step    1")
    assert "pass@1 0.250" in before and "pass@4 1.000" in before and "demonstrations" not in before
    figures = json.loads(done.stdout)
    assert figures["before"]["mean"] == 0.25 and figures["after"]["n"] == 12
    with SwarmClient(url) as client:
        base = client.evaluations()[0]
        assert (base.step, base.attempts, base.pass_at_k[0].mean) == (0, 4, 0.25)
    record = json.loads(Path("runs/train/longer/training.json").read_text())
    assert record["base_score"]["pass_at_k"] == figures["before"]["pass_at_k"]
    again = train("--program", "fourth.py", "--k", "16", "--url", url)
    assert again.exit_code == 0 and json.loads(again.stdout)["before"] == figures["before"]


def test_without_k_the_group_has_an_upper_bound(start_server: Any) -> None:
    done = train("--program", "never.py", "--url", start_server().url)
    assert done.exit_code == 0, done.output
    assert "pass@2, that of a group, is at most" in done.stderr and "demonstrations" in done.stderr


@pytest.mark.parametrize("k", ["0", "x", "4,", "9999"])
def test_other_numbers_are_refused_before_anything_is_started(k: str) -> None:
    done = train("--k", k)
    assert done.exit_code == 2 and "--k" in done.stderr and not Path("runs").exists()
