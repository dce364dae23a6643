"""A study that a process of its own works on: begun by one command, asked and followed by others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from process_support import is_running
from typer.testing import CliRunner
from waiting import wait_until

from researcher.cli import app

TOPIC = "batch size 2 or 3 for tool use at equal steps"
SMALL = ("--engine", "fake", "--seeds", "1", "--steps", "2", "--eval-episodes", "6", "--parallel", "1")
LONG = ("--engine", "fake", "--seeds", "50", "--steps", "2", "--eval-episodes", "6", "--parallel", "1")
LIMIT_S = 100


@pytest.fixture
def researcher(tmp_path: Path) -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """Runs a command as a terminal does; processes that outlive it are ended after the test."""
    environment = {name: value for name, value in os.environ.items() if name != "OPENAI_API_KEY"}
    environment |= {"SWARM_HOME": str(tmp_path / "runs"), "NO_COLOR": "1"}
    detached: list[int] = []

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "researcher.cli", *arguments],
            env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        if "--detach" in arguments and done.returncode == 0:
            detached.append(json.loads(done.stdout).get("pid", 0))
        return done

    yield run
    for pid in filter(is_running, filter(None, detached)):
        os.kill(pid, signal.SIGTERM)
        psutil.wait_procs([process for process in psutil.process_iter() if process.pid == pid], timeout=60)


def begin(researcher: Any, *options: str) -> dict[str, Any]:
    done = researcher("start", "--topic", TOPIC, "--planner", "rules", *options, "--detach", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def status_of(researcher: Any, study: str) -> dict[str, Any]:
    done = researcher("status", study, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_detached_study_works_in_a_session_of_its_own_and_is_watched_to_its_end(
    researcher: Any, start_server: Callable[..., Any]
) -> None:
    begun = begin(researcher, *SMALL, "--steps", "1", "--servers", start_server().url)

    assert os.getsid(begun["pid"]) == begun["pid"] != os.getsid(0)
    watched = researcher("watch", begun["study"], "--json")
    assert watched.returncode == 0, watched.stderr
    found = json.loads(watched.stdout)
    assert (found["study"], found["status"]) == (begun["study"], "finished")
    assert Path(found["report"]).is_file()
    wait_until(lambda: not is_running(begun["pid"]))
    assert "answer: " in Path(begun["log"]).read_text()


@pytest.mark.parametrize(
    ("options", "code"),
    [(("--topic", ""), 2), (("--topic", TOPIC, "--servers", "http://127.0.0.1:9"), 5)],
)
def test_bad_input_of_a_detached_start_is_answered_in_the_foreground(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], code: int
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    done = CliRunner().invoke(app, ["start", *options, "--detach", "--json", "--home", str(tmp_path / "runs")])

    assert done.exit_code == code
    assert done.stdout == "" and done.stderr
    assert not (tmp_path / "runs").exists()
