"""Thirty steps of a real task: verl learns what the local engine learns, from a job that differs by one line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from statistics import fmean

import pytest

pytestmark = [pytest.mark.verl, pytest.mark.slow]

EXAMPLE = Path(__file__).parents[2] / "examples" / "reverse_words"
LIMIT_S = 900
WINDOW = 5
BASE = 0.3
"""The first step is sampled with the base model, which reverses one word in five; of 128 episodes."""
NOISE = 0.12
"""Between means over WINDOW steps of two runs. Two of the same engine with different seeds stay within it."""


@pytest.mark.timeout(2 * LIMIT_S)
def test_rewards_rise_as_they_do_on_the_local_engine(tmp_path: Path) -> None:
    text = (EXAMPLE / "job.yaml").read_text()
    curves = {engine: learn(text, engine, tmp_path / engine) for engine in ("local", "verl")}
    local, verl = (smooth(curves[engine]) for engine in ("local", "verl"))
    assert len(curves["verl"]) >= 30
    assert curves["verl"][0] < BASE
    assert verl[-1] >= 0.8
    assert max(abs(ours - theirs) for ours, theirs in zip(verl, local, strict=True)) < NOISE


def learn(job: str, engine: str, directory: Path) -> list[float]:
    """The mean reward of every step."""
    directory.mkdir()
    path = directory / "job.yaml"
    path.write_text(f"engine: {engine}\n{job}")
    command = [sys.executable, "-m", "swarm.cli", "start", "--port", "0", "--home", str(directory / "home"), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = json.loads(server.stdout.readline())["url"]
            client = [sys.executable, str(EXAMPLE / "client.py"), "--url", url, "--job", str(path)]
            done = subprocess.run(client, capture_output=True, text=True, timeout=LIMIT_S)
        finally:
            server.terminate()
            server.wait(timeout=60)
    assert done.returncode == 0, done.stderr
    (directory / "curve.txt").write_text(done.stdout)
    return [float(reward) for reward in re.findall(r"^step +\d+  reward ([\d.]+)", done.stdout, re.M)]


def smooth(rewards: list[float]) -> list[float]:
    return [fmean(rewards[start : start + WINDOW]) for start in range(len(rewards) - WINDOW + 1)]
