"""`python -m bench` as a person calls it: figures of a real server, with the conditions of their measurement."""

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
        [sys.executable, "-m", "bench", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=300
    )


def test_control_plane_figures_are_printed_with_their_conditions() -> None:
    done = run_bench("control_plane", "--seconds", "0.2", "--json")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    figures = {(row["case"], row["metric"]): row["value"] for row in rows}
    assert len(figures) == len(rows) == 28
    for case in ("1 thread", "16 threads", "64 threads", "64 threads beside 10,000 open"):
        assert figures[case, "episodes_per_second"] > 0
        for call in ("begin", "call", "end"):
            assert 0 < figures[case, f"{call}_p50"] <= figures[case, f"{call}_p99"]
    for row in rows:
        assert row["benchmark"] == "control_plane"
        assert row["version"] == swarm.__version__
        assert (row["cpu"], row["seconds"]) == (rows[0]["cpu"], 0.2)
        assert datetime.fromisoformat(row["date"]).tzinfo is not None


@pytest.mark.parametrize("arguments", [[], ["warp"], ["control_plane", "--seconds", "0"]])
def test_wrong_usage_is_exit_code_2_and_measures_nothing(arguments: list[str]) -> None:
    done = run_bench(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
