"""The black-box example: an untouched program in a child process is trained by its environment alone."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

EXAMPLE = Path(__file__).parents[2] / "examples" / "black_box"


def test_the_program_is_trained_by_its_environment_alone(swarm_process: str, tmp_path: Path) -> None:
    imported = {
        name.name.partition(".")[0]
        for node in ast.walk(ast.parse((EXAMPLE / "agent.py").read_text()))
        if isinstance(node, ast.Import)
        for name in node.names
    }
    assert imported == {"json", "os", "sys", "urllib"}
    job = tmp_path / "job.yaml"
    settings = yaml.safe_load((EXAMPLE / "job.yaml").read_text())
    job.write_text(yaml.safe_dump({**settings, "batch_size": 2, "num_repeat": 2, "total_steps": 2}))
    done = subprocess.run(
        [sys.executable, str(EXAMPLE / "client.py"), "--url", swarm_process, "--job", str(job), "--eval-episodes", "2"],
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.returncode == 0, done.stderr
    assert re.findall(r"step +(\d+)  reward [\d.]+", done.stdout) == ["1", "2"]
    assert len(re.findall(r"validation accuracy (?:before|after): [\d.]+ \(n=2\)", done.stdout)) == 2
    trained = httpx.get(f"{swarm_process}/v1/swarm/episodes", params={"state": "trained"}, timeout=60).json()
    assert {episode["turns"] for episode in trained["episodes"]} == {1}
    assert len(trained["episodes"]) == 8


@pytest.mark.timeout(400)
def test_a_program_that_fails_is_never_rewarded(swarm_process: str, tmp_path: Path) -> None:
    for name in ("client.py", "job.yaml"):
        (tmp_path / name).write_text((EXAMPLE / name).read_text())
    (tmp_path / "agent.py").write_text("raise SystemExit('broken')\n")
    settings = {"engine": "fake", "batch_size": 2, "num_repeat": 2, "total_steps": 1}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(settings))
    command = [sys.executable, str(tmp_path / "client.py"), "--url", swarm_process, "--eval-episodes", "1"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as client:
        status = _wait_for_failures(swarm_process, 6)
        client.kill()
    assert status["failures"]["client_error:CalledProcessError"] >= 6
    assert (status["step"], status["pool"]["episodes"]) == (0, 0)


def _wait_for_failures(url: str, count: int) -> dict[str, Any]:
    deadline = time.monotonic() + 60
    while True:
        status = httpx.get(f"{url}/v1/swarm/status", timeout=60).json()
        if sum(status["failures"].values()) >= count:
            return status
        assert time.monotonic() < deadline, status
        time.sleep(0.1)
