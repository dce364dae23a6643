"""`python -m bench` as a person calls it: figures with the conditions of their measurement."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

import swarm

ROOT = Path(__file__).parents[2]


def run_bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bench", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=900
    )


@pytest.mark.slow
@pytest.mark.timeout(1000)
def test_figures_of_merging_are_printed_with_their_conditions() -> None:
    done = run_bench("merging", "--seconds", "0.2", "--json")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len({(row["case"], row["metric"]) for row in rows}) == len(rows) > 0
    for row in rows:
        assert row["benchmark"] == "merging"
        assert row["value"] > 0
        assert row["version"] == swarm.__version__
        assert (row["cpu"], row["seconds"]) == (rows[0]["cpu"], 0.2)
        assert datetime.fromisoformat(row["date"]).tzinfo is not None


@pytest.mark.parametrize(
    "arguments", [[], ["warp"], ["merging", "--seconds", "0"], ["gpu", "--device", "tpu"], ["gpu", "--minutes", "0"]]
)
def test_wrong_usage_is_exit_code_2_and_measures_nothing(arguments: list[str]) -> None:
    done = run_bench(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
