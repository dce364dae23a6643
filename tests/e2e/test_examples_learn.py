"""The shipped examples against a real server process: held-out accuracy rises as their READMEs say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from command_line import run_swarm
from example_programs import EXAMPLES, changed_job, run_example


def accuracies(output: str) -> tuple[float, float]:
    before, after = re.findall(r"validation accuracy (?:before|after): ([\d.]+)", output)
    return float(before), float(after)


@pytest.mark.timeout(400)
def test_reversing_words_is_learned_within_twelve_steps(swarm_process: str, tmp_path: Path) -> None:
    job = changed_job(tmp_path, "reverse_words", total_steps=12)
    output = run_example("reverse_words", "--url", swarm_process, "--job", job)
    before, after = accuracies(output)
    assert re.search(r"trained 12 steps in \d+ s", output)
    assert before <= 0.40
    assert after >= 0.85, output


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("name", "changes", "most_before", "least_after"),
    [
        ("reverse_words", {"lora_rank": 8, "lr": 0.01, "total_steps": 14}, 0.40, 0.8),
        ("openai_tools", {"total_steps": 12}, 0.2, 0.6),
    ],
    ids=["an adapter of rank 8", "a stock OpenAI agent"],
)
def test_others_learn_too(
    swarm_process: str, tmp_path: Path, name: str, changes: dict[str, Any], most_before: float, least_after: float
) -> None:
    job = changed_job(tmp_path, name, **changes)
    before, after = accuracies(run_example(name, "--url", swarm_process, "--job", job))
    assert before <= most_before
    assert after >= least_after


def test_a_stock_openai_agent_is_trained_by_its_tool_calls(swarm_process: str, tmp_path: Path) -> None:
    job = changed_job(tmp_path, "openai_tools", engine="fake", batch_size=4, num_repeat=2, total_steps=2)
    output = run_example("openai_tools", "--url", swarm_process, "--job", job, "--eval-episodes", "8")
    # The fake model never calls the tool.
    assert accuracies(output) == (0.0, 0.0)
    assert re.findall(r"step +(\d+) ", output) == ["1", "2"]


@pytest.mark.parametrize("library", ["langchain", "pydantic_ai"])
def test_an_agent_of_a_library_is_trained_with_its_tool_and_scored_by_its_file(
    swarm_process: str, tmp_path: Path, library: str
) -> None:
    job = changed_job(tmp_path, "agent_tools", engine="fake", model="nano", batch_size=2, num_repeat=2, total_steps=1)
    output = run_example(
        "agent_tools",
        "--url",
        swarm_process,
        "--job",
        job,
        "--library",
        library,
        "--tool",
        "find",
        "--eval-episodes",
        "2",
    )
    # The fake model never calls the tool.
    assert accuracies(output) == (0.0, 0.0)
    assert "2, 0 broken" in output
    file = EXAMPLES / "agent_tools" / f"{library}_agent.py"
    scored = run_swarm("eval", "--agent", str(file), "--url", swarm_process, "-n", "2")
    assert scored.exit_code == 0 and "broken" not in scored.output, scored.output
