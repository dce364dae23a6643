"""`swarm eval` and `swarm train` on environments that drive themselves: recorded and trained as any other."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner
from verifiers_stand_in import interpreter, name_of

from swarm import SwarmClient, TrainJob
from swarm.cli import app

JOB = "engine: fake\nbatch_size: 2\nnum_repeat: 2\ntotal_steps: 2\n"


def swarm(*words: str) -> Any:
    return CliRunner().invoke(app, [*words, "--json"])


def test_attempts_of_another_agent_are_scored_and_recorded(tmp_path: Path, start_server: Any) -> None:
    url = start_server(TrainJob(engine="fake")).url
    done = swarm("eval", "--env", name_of(interpreter(tmp_path), count=300), "--url", url, "-n", "20")
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout)
    assert (figures["task"], figures["episodes"], figures["failures"]) == ("verifiers:numbers", 20, 0)
    assert figures["mean_reward"] == 0.5
    with SwarmClient(url) as client:
        episodes = client.episodes(limit=100)
    assert [episode.reward for episode in episodes] == [0.5] * 20
    assert all(episode.turns == 1 for episode in episodes)


def test_rewards_and_curricula_of_a_program_work_and_its_agent_is_refused(tmp_path: Path, start_server: Any) -> None:
    url = start_server().url
    (tmp_path / "job.yaml").write_text(JOB)
    shaped = tmp_path / "shaped.py"
    shaped.write_text(
        "def reward(task, transcript, grade): return grade.score - 0.25 + 0 * len(transcript[-1]['content'])\n"
        "def schedule(tasks, progress): return sorted(tasks, key=lambda task: len(task.main_query))\n"
    )
    name = name_of(interpreter(tmp_path), count=300)
    words = ("train", "--env", name, "--job", str(tmp_path / "job.yaml"), "--url", url)
    words = (*words, "--home", str(tmp_path / "training"), "--eval-episodes", "4", "--few-tasks")
    done = swarm(*words, "--program", str(shaped))
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout)
    assert (figures["steps"], figures["failed_episodes"]) == (2, 0)
    assert figures["before"]["mean"] == figures["after"]["mean"] == 0.5
    assert done.stderr.count("reward 0.250") == 2
    second = tmp_path / "second.py"
    second.write_text("def agent(task, model, session): return 'x'\n")
    for command in ((*words, "--fresh"), ("eval", "--env", name, "--url", url, "-n", "4")):
        refused = swarm(*command, "--program", str(second))
        assert refused.exit_code == 2 and "has an agent of its own: take the function agent out" in refused.stderr


def test_an_interrupt_ends_attempts_that_would_go_on(tmp_path: Path, start_server: Any) -> None:
    url = start_server(TrainJob(engine="fake")).url
    begun = tmp_path / "begun"
    os.mkfifo(begun)
    name = name_of(interpreter(tmp_path), together=1000, begun=begun)
    words = ["eval", "--env", name, "--url", url, "-n", "1"]
    with subprocess.Popen([sys.executable, "-m", "swarm.cli", *words], stderr=subprocess.PIPE, text=True) as command:
        assert begun.read_text() == "begun"
        command.send_signal(signal.SIGINT)
        _, said = command.communicate(timeout=60)
    assert command.returncode == 130 and "Traceback" not in said


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ({"python": "/nowhere/python"}, 2, "/nowhere/python cannot be run: No such file or directory"),
        ({"python": sys.executable}, 2, "has no verifiers: install verifiers>=0.4 there"),
        ({"open": "library"}, 2, "the library is wrong"),
        ({"open": "options"}, 2, "the options is wrong"),
        ({"open": "unknown"}, 3, "the unknown is wrong"),
        ({"open": "exit"}, 1, "the worker of verifiers ended with status 3: ImportError: a library is broken"),
        ({"open": "noise"}, 1, "it sent the invalid answer b'hello, this is no answer"),
    ],
)
def test_what_cannot_be_opened_is_one_line_and_a_documented_exit_code(
    tmp_path: Path, options: dict[str, str], code: int, message: str
) -> None:
    named = {"python": str(interpreter(tmp_path)), **options}
    done = swarm("env", "check", "verifiers:numbers?" + "&".join(f"{name}={value}" for name, value in named.items()))
    assert done.exit_code == code and done.stdout == ""
    assert done.stderr.count("\n") == 1 and message in done.stderr
