"""`python -m bench gpu` on a CPU: every part works in small, so that a GPU is met with parts that ran."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.gpu.schedule import PARTS

ROOT = Path(__file__).parents[2]
MINUTES = 6


@pytest.mark.slow
@pytest.mark.timeout(60 * MINUTES + 300)
def test_every_part_runs_on_a_cpu(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench", "gpu", "--device", "cpu", "--minutes", str(MINUTES), "--out", tmp_path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (tmp_path / "report.txt").read_text() == done.stdout
    report = json.loads((tmp_path / "report.json").read_text())
    assert [part["module"] for part in report["parts"]] == [part.module for part in PARTS]
    # A busy machine may end a part at its time box, with the figures that it has until then. Nothing else may fail.
    failures = [part["failure"] for part in report["parts"] if part["failure"]]
    assert [failure for failure in failures if not failure.startswith("ended at its time box")] == []
    figures = [figure for part in report["parts"] for figure in part["figures"]]
    assert [figure for figure in figures if figure["metric"] == "failure"] == []
    assert figures
