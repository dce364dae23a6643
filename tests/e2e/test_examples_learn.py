"""The shipped examples against a real server process: held-out accuracy rises as their READMEs say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

EXAMPLES = Path(__file__).parents[2] / "examples"


def run_example(name: str, url: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name / "client.py"), "--url", url, *arguments],
        capture_output=True,
        text=True,
        timeout=280,
        env={**os.environ, "NO_COLOR": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def accuracies(output: str) -> tuple[float, float]:
    before, after = re.findall(r"validation accuracy (?:before|after): ([\d.]+)", output)
    return float(before), float(after)


@pytest.mark.timeout(400)
def test_reversing_words_is_learned_within_twelve_steps(swarm_process: str, tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text((EXAMPLES / "reverse_words" / "job.yaml").read_text().replace("total_steps: 30", "total_steps: 12"))
    output = run_example("reverse_words", swarm_process, "--job", str(job))
    before, after = accuracies(output)
    assert re.search(r"trained 12 steps in \d+ s", output)
    assert before <= 0.40
    assert after >= 0.85, output


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_an_adapter_of_rank_8_learns_to_reverse_words(swarm_process: str, tmp_path: Path) -> None:
    settings = yaml.safe_load((EXAMPLES / "reverse_words" / "job.yaml").read_text())
    job = tmp_path / "job.yaml"
    job.write_text(yaml.safe_dump(settings | {"lora_rank": 8, "lr": 0.01, "total_steps": 14}))
    before, after = accuracies(run_example("reverse_words", swarm_process, "--job", str(job)))
    assert before <= 0.40
    assert after >= 0.8


def test_a_stock_openai_agent_is_trained_by_its_tool_calls(swarm_process: str, tmp_path: Path) -> None:
    settings = yaml.safe_load((EXAMPLES / "openai_tools" / "job.yaml").read_text())
    settings |= {"engine": "fake", "batch_size": 4, "num_repeat": 2, "total_steps": 2}
    job = tmp_path / "job.yaml"
    job.write_text(yaml.safe_dump(settings))
    output = run_example("openai_tools", swarm_process, "--job", str(job), "--eval-episodes", "8")
    # The fake model never calls the tool.
    assert accuracies(output) == (0.0, 0.0)
    assert re.findall(r"step +(\d+) ", output) == ["1", "2"]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_stock_openai_agent_learns_to_use_its_tool(swarm_process: str, tmp_path: Path) -> None:
    job = (EXAMPLES / "openai_tools" / "job.yaml").read_text()
    short = tmp_path / "job.yaml"
    short.write_text(re.sub(r"total_steps: \d+", "total_steps: 12", job))
    before, after = accuracies(run_example("openai_tools", swarm_process, "--job", str(short)))
    assert before < 0.2
    assert after >= 0.6
