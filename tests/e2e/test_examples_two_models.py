"""The two_models example on two real servers: both models learn from the episodes that they have in common."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from swarm import SwarmClient

EXAMPLE = Path(__file__).parents[2] / "examples" / "two_models"
ROLES = ("planner", "executor")


@pytest.fixture
def start_process(tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """Starts `swarm start` in processes of their own; returns the URL of each."""
    servers: list[subprocess.Popen[str]] = []

    def start(name: str) -> str:
        command = [sys.executable, "-m", "swarm.cli", "start", "--port", "0", "--home", str(tmp_path / name), "--json"]
        servers.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        stdout = servers[-1].stdout
        assert stdout is not None
        return json.loads(stdout.readline())["url"]

    yield start
    for server in servers:
        with server:
            server.send_signal(signal.SIGTERM)
            server.wait(timeout=30)


def run_example(start_process: Any, jobs: Path, *arguments: str) -> tuple[str, dict[str, str]]:
    urls = {role: start_process(role) for role in ROLES}
    command = [sys.executable, str(EXAMPLE / "client.py"), "--jobs", str(jobs), *arguments]
    for role, url in urls.items():
        command += [f"--{role}-url", url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=220)
    assert done.returncode == 0, done.stderr
    return done.stdout, urls


def changed_jobs(directory: Path, **changes: Any) -> Path:
    for role in ROLES:
        job = yaml.safe_load((EXAMPLE / f"{role}.yaml").read_text())
        (directory / f"{role}.yaml").write_text(yaml.safe_dump({**job, **changes}))
    return directory


def rewards(output: str, when: str) -> dict[str, float]:
    [line] = re.findall(rf"^held-out reward {when}: (.*)$", output, re.MULTILINE)
    return {role: float(value) for role, value in re.findall(r"(\w+) ([\d.]+)", line) if role in ROLES}


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_both_servers_train_on_the_same_episodes(start_process: Any, tmp_path: Path) -> None:
    quick = changed_jobs(tmp_path, engine="fake", total_steps=4, batch_size=4, num_repeat=4)
    output, urls = run_example(start_process, quick, "--eval-episodes", "10")
    assert set(rewards(output, "before")) == set(rewards(output, "after")) == set(ROLES)
    assert "0 episodes failed" in output
    ended: dict[str, list[str]] = {}
    for role, url in urls.items():
        with SwarmClient(url) as client:
            assert client.status().step >= 3
            episodes = client.episodes(episode_type="train")
        assert {episode.state for episode in episodes} <= {"completed", "trained", "dropped", "aborted"}
        ended[role] = sorted(each.task_id or "" for each in episodes if each.state != "aborted")
    assert ended["planner"] == ended["executor"]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_held_out_reward_of_both_models_rises(start_process: Any) -> None:
    output, _ = run_example(start_process, EXAMPLE)
    before, after = rewards(output, "before"), rewards(output, "after")
    assert all(0.15 <= before[role] <= 0.45 for role in ROLES), output
    assert after["planner"] >= before["planner"] + 0.2, output
    assert after["executor"] >= before["executor"] + 0.3, output
