"""The black-box example: an untouched program in a child process is trained by its environment alone."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import httpx
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
