"""The two_models example on two real servers: both models learn from the episodes that they have in common."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from example_programs import EXAMPLES, changed_job, run_example
from server_processes import ServerProcess

from swarm import SwarmClient

ROLES = ("planner", "executor")


def run_on_two(server_process: Callable[..., ServerProcess], jobs: Path, *arguments: str) -> tuple[str, dict[str, str]]:
    urls = {role: server_process().url for role in ROLES}
    places = [word for role, url in urls.items() for word in (f"--{role}-url", url)]
    return run_example("two_models", "--jobs", str(jobs), *arguments, *places), urls


def rewards(output: str, when: str) -> dict[str, float]:
    [line] = re.findall(rf"^held-out reward {when}: (.*)$", output, re.MULTILINE)
    return {role: float(value) for role, value in re.findall(r"(\w+) ([\d.]+)", line) if role in ROLES}


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_both_servers_train_on_the_same_episodes(server_process: Any, tmp_path: Path) -> None:
    for role in ROLES:
        changed_job(tmp_path, "two_models", f"{role}.yaml", engine="fake", total_steps=4, batch_size=4, num_repeat=4)
    output, urls = run_on_two(server_process, tmp_path, "--eval-episodes", "10")
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
def test_the_held_out_reward_of_both_models_rises(server_process: Any) -> None:
    output, _ = run_on_two(server_process, EXAMPLES / "two_models")
    before, after = rewards(output, "before"), rewards(output, "after")
    assert all(0.15 <= before[role] <= 0.45 for role in ROLES), output
    assert after["planner"] >= before["planner"] + 0.2, output
    assert after["executor"] >= before["executor"] + 0.3, output
