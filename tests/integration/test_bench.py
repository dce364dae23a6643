"""`python -m bench` as a person calls it: figures of a real server, kept with the conditions of their measurement."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import swarm
from bench.__main__ import run_command

ROOT = Path(__file__).parents[2]


def run_bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bench", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=110
    )


def test_control_plane_figures_are_printed_and_appended_with_their_conditions(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text('{"benchmark": "earlier"}\n')
    done = run_bench("control_plane", "--seconds", "0.2", "--results", str(path), "--json")
    assert done.returncode == 0, done.stderr
    earlier, *rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert earlier == {"benchmark": "earlier"}
    assert [json.loads(line) for line in done.stdout.splitlines()] == rows

    figures = {(row["case"], row["metric"]): row["value"] for row in rows}
    assert len(figures) == len(rows) == 21
    for case in ("1 thread", "16 threads", "64 threads"):
        assert figures[case, "episodes_per_second"] > 0
        for call in ("begin", "call", "end"):
            assert 0 < figures[case, f"{call}_p50"] <= figures[case, f"{call}_p99"]
    assert {row["unit"] for row in rows} == {"episodes/s", "ms"}

    for row in rows:
        assert row["benchmark"] == "control_plane"
        assert row["version"] == swarm.__version__
        assert row["seconds"] == 0.2
        assert row["cpu"]
        assert row["cores"] >= 1
        assert row["load_1m"] >= 0
        assert datetime.fromisoformat(row["date"]).tzinfo is not None


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[object, str]]:
    """Exit code and message of a command that ends before it measures anything, in this process."""

    def run(*arguments: str) -> tuple[object, str]:
        monkeypatch.setattr(sys, "argv", ["bench", *arguments])
        with pytest.raises(SystemExit) as ended:
            run_command()
        return ended.value.code, capsys.readouterr().err

    return run


@pytest.mark.parametrize("arguments", [["warp"], ["control_plane", "--seconds", "0"], ["engine", "--live"]])
def test_wrong_usage_is_exit_code_2_and_writes_nothing(refuse: Any, arguments: list[str], tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    code, _ = refuse(*arguments, "--results", str(path))
    assert code == 2
    assert not path.exists()


def test_an_unknown_name_is_answered_with_those_that_exist(refuse: Any) -> None:
    _, message = refuse("warp")
    assert all(name in message for name in ("engine", "learner", "control_plane")), message
