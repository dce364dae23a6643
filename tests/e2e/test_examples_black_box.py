"""The black-box example: an untouched program in a child process is trained by its environment alone."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import httpx
from example_programs import EXAMPLES, changed_job, run_example


def test_the_program_is_trained_by_its_environment_alone(swarm_process: str, tmp_path: Path) -> None:
    imported = {
        name.name.partition(".")[0]
        for node in ast.walk(ast.parse((EXAMPLES / "black_box" / "agent.py").read_text()))
        if isinstance(node, ast.Import)
        for name in node.names
    }
    assert imported == {"json", "os", "sys", "urllib"}
    job = changed_job(tmp_path, "black_box", batch_size=2, num_repeat=2, total_steps=2)
    output = run_example("black_box", "--url", swarm_process, "--job", job, "--eval-episodes", "2")
    assert re.findall(r"step +(\d+)  reward [\d.]+", output) == ["1", "2"]
    assert len(re.findall(r"validation accuracy (?:before|after): [\d.]+ \(n=2\)", output)) == 2
    trained = httpx.get(f"{swarm_process}/v1/swarm/episodes", params={"state": "trained"}, timeout=60).json()
    assert {episode["turns"] for episode in trained["episodes"]} == {1}
    assert len(trained["episodes"]) == 8
